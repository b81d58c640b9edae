// Turns the headings inside <div class="tabs"> into tabs. Without this script they are sections.
"use strict";
for (const box of document.querySelectorAll("div.tabs")) {
    const bar = document.createElement("div");
    bar.className = "tab-bar";
    bar.setAttribute("role", "tablist");
    const tabs = [];
    let panel = null;
    for (const node of [...box.children]) {
        if (node.tagName === "H3") {
            panel = document.createElement("section");
            panel.setAttribute("role", "tabpanel");
            const button = document.createElement("button");
            button.type = "button";
            button.textContent = node.textContent;
            button.setAttribute("role", "tab");
            button.addEventListener("click", () => select(button.textContent));
            // The heading stays as the target of links.
            node.classList.add("tab-title");
            panel.append(node);
            bar.append(button);
            box.append(panel);
            tabs.push({ id: node.id, button, panel });
        } else if (panel) {
            panel.append(node);
        }
    }
    box.prepend(bar);
    const select = (name) => {
        for (const { button, panel } of tabs) {
            const chosen = button.textContent === name;
            button.setAttribute("aria-selected", String(chosen));
            panel.hidden = !chosen;
        }
    };
    const linked = () => tabs.find(({ id }) => `#${id}` === location.hash);
    window.addEventListener("hashchange", () => linked() && select(linked().button.textContent));
    if (tabs.length > 0) select((linked() ?? tabs[0]).button.textContent);
}
