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
    # Text has no character 0.
    for (code in 1:31) text <- gsub(intToUtf8(code), sprintf("\\u%04x", code), text, fixed = TRUE)
    paste0("\"", text, "\"")
  }
  # The class and what R prints of it.
  typed <- function(value) {
    lines <- textConnection(NULL, "w", encoding = "UTF-8")
    sink(lines)
    failed <- tryCatch({ print(value); NULL }, error = function(error) "its text failed", finally = sink())
    text <- c(textConnectionValue(lines), failed)
    close(lines)
    text <- iconv(text, "UTF-8", "UTF-8", sub = "byte")
    paste0("{\"type\":", quoted(class(value)[1]), ",\"text\":", quoted(paste(text, collapse = "\n")), "}")
  }
  number <- function(value) {
    text <- format(value, digits = 15, trim = TRUE)
    if (is.na(value) || as.numeric(text) == value) text else format(value, digits = 17, trim = TRUE)
  }
  json <- function(value, depth = 0) {
    if (is.null(value)) return("null")
    if (is.factor(value)) value <- as.character(value)
    named <- names(value)
    is_frame <- is.data.frame(value)
    # Its members have one name each, or none has one.
    has_names <- !is.null(named) && all(nzchar(named) & !is.na(named)) && !anyDuplicated(named)
    if (depth >= 64 || (is.object(value) && !is_frame) || (!is.null(dim(value)) && !is_frame) ||
        (!is.null(named) && !has_names)) return(typed(value))
    many <- function(parts) {
      if (has_names) {
        paste0("{", paste0(quoted(named), ":", parts, collapse = ","), "}")
      } else if (length(value) == 1 && !is.list(value)) {
        parts
      } else {
        paste0("[", paste(parts, collapse = ","), "]")
      }
    }
    if (is.list(value)) return(many(vapply(unname(unclass(value)), json, "", depth = depth + 1)))
    parts <- if (is.logical(value)) ifelse(value, "true", "false")
      else if (is.numeric(value)) vapply(as.vector(value), number, "")
      else if (is.character(value) && all(validUTF8(value))) quoted(value)
      else return(typed(value))
    parts[is.na(value)] <- "null"
    # Missing values are null; these are numbers.
    special <- is.numeric(value) & (is.nan(value) | is.infinite(value))
    parts[special] <- sprintf("{\"type\":\"numeric\",\"text\":\"%s\"}", as.character(value)[special])
    many(parts)
  }
  if (last$visible && !is.null(last$value)) {
    text <- tryCatch(json(last$value), error = function(error) typed(last$value))
    # R opens no descriptor by its number.
    target <- pipe("cat >&4", "w")
    writeLines(text, target, useBytes = TRUE)
    close(target)
  }
})
