local({
  given <- commandArgs()
  mark <- match("--args", given, nomatch = length(given))
  if (mark < length(given)) {
    # The first one is there so that Rscript takes none of them for its own.
    given <- given[-(mark + 1)]
    unlockBinding("commandArgs", baseenv())
    assign("commandArgs", envir = baseenv(), function(trailingOnly = FALSE) {
      if (trailingOnly) given[-seq_len(mark)] else given
    })
    lockBinding("commandArgs", baseenv())
  }
  path <- "/proc/self/fd/5"
  code <- readLines(path, warn = FALSE, encoding = "UTF-8")
  expressions <- parse(text = code, keep.source = TRUE, encoding = "UTF-8")
  last <- list(visible = FALSE)
  for (index in seq_along(expressions)) {
    last <- withVisible(eval(expressions[index], globalenv()))
    if (last$visible) print(last$value)
  }
  quoted <- function(text) {
    text <- enc2utf8(as.character(text))
    text <- gsub("\\", "\\\\", text, fixed = TRUE)
    text <- gsub("\"", "\\\"", text, fixed = TRUE)
    text <- gsub("\n", "\\n", text, fixed = TRUE)
    text <- gsub("\r", "\\r", text, fixed = TRUE)
    text <- gsub("\t", "\\t", text, fixed = TRUE)
    text <- gsub("[[:cntrl:]]", "", text)
    paste0("\"", text, "\"")
  }
  json <- function(value, depth = 0) {
    if (depth > 64) stop("too deep")
    if (is.null(value)) return("null")
    if (is.factor(value)) value <- as.character(value)
    many <- function(parts) {
      if (!is.null(names(value)) && all(nzchar(names(value)))) {
        paste0("{", paste0(quoted(names(value)), ":", parts, collapse = ","), "}")
      } else if (length(value) == 1 && !is.list(value)) {
        parts
      } else {
        paste0("[", paste(parts, collapse = ","), "]")
      }
    }
    if (is.list(value)) return(many(vapply(unname(value), json, "", depth = depth + 1)))
    parts <- if (is.logical(value)) ifelse(value, "true", "false")
      else if (is.numeric(value)) vapply(as.vector(value), format, "", digits = 15, trim = TRUE)
      else if (is.character(value)) quoted(value)
      else stop("no JSON")
    parts[is.na(value) | (is.numeric(value) & !is.finite(value))] <- "null"
    many(parts)
  }
  if (last$visible && !is.null(last$value)) {
    text <- tryCatch(json(last$value), error = function(error) NULL)
    if (length(text) == 1) {
      # R opens no descriptor by its number.
      target <- pipe("cat >&4", "w")
      writeLines(text, target, useBytes = TRUE)
      close(target)
    }
  }
})
