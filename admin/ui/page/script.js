"use strict";
// The page works without this script. It refreshes the figures, opens confirmations in a dialog, and selects whole lists.
(() => {
  const every = 5000;
  const $ = (selector, root = document) => root.querySelector(selector);

  // load fetches one of our pages as a document. For any other response it throws, and the browser follows the link.
  const load = async (url, options) => {
    const answer = await fetch(url, { credentials: "same-origin", ...options });
    const kind = answer.headers.get("Content-Type") || "";
    if (!kind.startsWith("text/html")) throw new Error("no page");
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  };

  // Figures refresh every few seconds while the tab is in front and none of their links has the keyboard focus.
  const live = $("#live");
  if ($("[data-live]") && live) {
    let on = true, timer = 0, busy = false;
    const next = () => {
      clearTimeout(timer);
      if (on && !document.hidden) timer = setTimeout(refresh, every);
    };
    const refresh = async () => {
      const old = $("[data-live]");
      if (busy || old.contains(document.activeElement) || $("dialog[open]")) return next();
      busy = true;
      try {
        const page = await load(location.href);
        const fresh = $("[data-live]", page);
        if (fresh && on && !document.hidden) {
          for (const open of old.querySelectorAll("details[open]")) {
            const same = $("details." + open.className, fresh);
            if (same) same.open = true;
          }
          old.replaceWith(document.adoptNode(fresh));
          $("footer").replaceWith(document.adoptNode($("footer", page)));
          document.title = page.title;
        }
        say(fresh ? "Live" : "No response");
      } catch {
        say("No response");
      }
      busy = false;
      next();
    };
    const say = (text) => { $("span", live).textContent = text; };
    live.hidden = false;
    live.addEventListener("click", () => {
      on = !on;
      live.setAttribute("aria-pressed", on);
      say(on ? "Live" : "Paused");
      if (on) refresh();
    });
    document.addEventListener("visibilitychange", () => {
      clearTimeout(timer);
      if (on && !document.hidden) refresh();
    });
    next();
  }

  // Confirmations open in a dialog, or as a page of their own if that fails.
  const dialog = $("#ask");
  const ask = async (url, options, otherwise) => {
    try {
      const wait = document.createElement("p");
      wait.id = "question";
      wait.setAttribute("role", "status");
      wait.textContent = "Counting messages…";
      dialog.replaceChildren(wait);
      dialog.showModal(); // it may take seconds
      const question = $("[data-question]", await load(url, options));
      if (!dialog.open) return; // the user has closed it meanwhile
      if (!question) throw new Error("no question");
      dialog.replaceChildren(document.adoptNode(question));
      ($("input:not([type=hidden])", dialog) || $(".button", dialog)).focus();
    } catch {
      dialog.close();
      otherwise();
    }
  };
  document.addEventListener("click", (event) => {
    const at = event.target.closest("a, button");
    if (!at || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    if (at.matches("a[data-ask]")) {
      event.preventDefault();
      ask(at.href, {}, () => { location.href = at.href; });
    } else if (at.matches("[data-close]") && at.closest("dialog")) {
      event.preventDefault();
      dialog.close();
    }
  });
  document.addEventListener("submit", (event) => {
    const { target: form, submitter } = event;
    if (submitter && submitter.matches("[data-ask]")) {
      event.preventDefault();
      const body = new URLSearchParams(new FormData(form, submitter));
      ask(form.action, { method: "POST", body }, () => {
        const verb = document.createElement("input");
        Object.assign(verb, { type: "hidden", name: submitter.name, value: submitter.value });
        form.append(verb);
        form.submit();
      });
    } else if (form.closest("dialog")) {
      $("button", form).disabled = true; // no second submit
    }
  });

  // Lists: one box selects the whole page, and actions on the selection need one.
  const list = $("form.list");
  const all = list && $("[data-all]", list);
  if (all) {
    const boxes = [...list.querySelectorAll("input[name=chosen]")];
    const count = () => {
      const n = boxes.filter((box) => box.checked).length;
      all.checked = n === boxes.length;
      all.indeterminate = n > 0 && n < boxes.length;
      $("[data-chosen]", list).textContent = n ? n + " selected:" : "Selected:";
      list.querySelectorAll("[data-needs-choice]").forEach((button) => { button.disabled = n === 0; });
    };
    all.hidden = false;
    all.nextElementSibling.hidden = true;
    all.addEventListener("change", () => { boxes.forEach((box) => { box.checked = all.checked; }); count(); });
    list.addEventListener("change", count);
    count();
  }
})();
