"""The report is one safe file, and works in a real browser."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import stat
import time
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("matplotlib")

from curves import (
    constant_curve,
    curve_of,
    keep,
    thyroid_curve,
    total_curve,
    wide_curve,
    with_test_scores,
)
from greedymiser import MiserRegressor
from greedymiser._core.amounts import amount, money
from greedymiser._core.version import __version__
from greedymiser.curve.curve import tradeoff_curve
from greedymiser.curve.summary import front_steps, recommended
from greedymiser.plotting.report import write_report

NASTY = "</script><b>"


class Page(HTMLParser):
    """The elements of a page, with the text of scripts, as a browser finds them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.title = [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.lasttag == "script" and self.tags[-1][0] == "script":
            self.scripts[-1] += data
        elif self.tags and self.tags[-1][0] == "title":
            self.title += data

    @property
    def data(self):
        return json.loads(self.scripts[0])


def page_of(curve, folder, **options):
    return Page(write_report(curve, folder / "page.html", **options).read_text(encoding="utf-8"))


def costly_trees():
    """A long front, with prices that are rounded where they are printed."""
    return thyroid_curve(names=False, tree_cost=0.0237 / 3)


def nasty_curve():
    """Names that would break a page that believed them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 3))
    y = X @ [1.0, 2.0, 3.0]
    prices = {NASTY: 1.0, '<img src=x onerror="alert(1)">': 2.0, "{{js}} & \u2028 $x$ <!--": 30.0}
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list(prices))
    models = [
        MiserRegressor(costs=prices, tradeoff=t, max_iter=20, n_jobs=1).fit(
            frame[:300], y[:300], X_val=frame[300:], y_val=y[300:]
        )
        for t in (0.0, 0.05)
    ]
    return curve_of(models, scoring=NASTY, cost_unit=NASTY)


# The file


def test_data_is_what_the_curve_says(tmp_path):
    curve = with_test_scores(thyroid_curve())
    data = page_of(curve, tmp_path).data
    front, few = curve.pareto().sort_values("cost"), front_steps(curve)
    assert [step["test"] for step in data["steps"]] == front["test_score"].tolist()
    assert data["line"] == front[["cost", "score"]].to_numpy().tolist()
    assert [(step["cost"], step["score"]) for step in data["steps"]] == list(
        map(tuple, data["line"])
    )
    assert data["steps"][data["recommended"]]["cost"] == few[recommended(few)].cost
    assert data["lead"].endswith("All 21 features would cost $69.81.")
    assert data["total"] == 69.81


def test_the_budget_of_a_step_buys_it(tmp_path):
    curve = costly_trees()
    for step in page_of(curve, tmp_path).data["steps"]:
        assert curve.best_row(step["budget"])["score"] == step["score"]


def test_picture_and_slider_have_every_model_that_no_other_beats(tmp_path):
    curve = costly_trees()
    data, few = page_of(curve, tmp_path).data, front_steps(curve)
    assert len(data["line"]) == len(data["steps"]) > len(few) == 12
    assert [step["cost"] for step in data["steps"] if step["is_main"]] == [s.cost for s in few]
    for cost in np.linspace(0.0, data["steps"][-1]["cost"], 50):
        chosen = [step for step in data["steps"] if step["cost"] <= cost][-1]
        assert chosen["score"] == curve.best_row(cost)["score"]


def test_a_shopping_list_adds_up(tmp_path):
    data = page_of(thyroid_curve(), tmp_path).data
    for step in data["steps"]:
        totals = [total for _, total, _ in step["list"]]
        assert totals[-1:] == ([step["cost_text"]] if totals else [])
        names = [data["lines"][line]["name"] for line, _, _ in step["list"]]
        assert sorted(names) == sorted(step["names"])
        shares = [share.rstrip("%") for _, _, share in step["list"]]
        assert not totals or abs(sum(int(share) for share in shares if share) - 100) <= len(shares)


def test_the_matrix_has_what_is_shared_before_what_needs_it(tmp_path):
    lines = page_of(thyroid_curve(), tmp_path).data["lines"]
    assert lines[0] == {"name": "blood_draw", "is_part": False, "price_text": "$2.10"}
    assert {line["name"] for line in lines if line["is_part"]} <= {"TSH", "T3", "TT4", "T4U"}


def test_features_without_names(tmp_path):
    data = page_of(thyroid_curve(names=False, tree_cost=0.05), tmp_path).data
    assert {line["name"] for line in data["lines"]} <= {str(i) for i in range(21)}
    assert "trees cost $" in data["steps"][-1]["note"]


def test_totals_are_amounts(tmp_path):
    curve = total_curve()
    data = page_of(curve, tmp_path).data
    assert [step["score_text"] for step in data["steps"]] == [
        money(-step.score, "dollars") for step in front_steps(curve)
    ]
    assert data["axes"]["is_total"]
    total = money(-curve.best_row()["score"], "dollars")
    assert data["lead"].startswith(f"{total} a row in all, ")
    changes = data["steps"][-1]["beside"][0]
    assert changes["score"].startswith("total +$")  # with less money for features


def test_where_it_comes_from_is_told(tmp_path):
    data = page_of(thyroid_curve(), tmp_path, about={"data": "loans.csv", "rows": 300}).data
    assert data["provenance"].startswith("data: loans.csv · rows: 300 · ")
    assert data["provenance"].endswith(f"greedymiser {__version__}")


def test_other_models_are_compared_with(tmp_path):
    data = page_of(thyroid_curve(), tmp_path, baselines={"in use": (60.0, -0.02)}).data
    other = data["baselines"][0]
    assert (other["name"], other["cost_text"], other["score_text"]) == ("in use", "$60", "-0.020")
    assert other["beside"][0].startswith("$60 less, score \N{MINUS SIGN}")


def test_settings(tmp_path):
    settings = {line["name"]: line for line in page_of(thyroid_curve(), tmp_path).data["settings"]}
    assert settings["estimator"]["value"] == "MiserClassifier"
    assert settings["max_iter"] == {"name": "max_iter", "value": "40", "is_default": False}
    assert settings["max_depth"]["is_default"]
    assert "tradeoff" not in settings
    assert not any(" at 0x" in line["value"] for line in settings.values())


def test_nothing_comes_from_elsewhere(tmp_path):
    page = page_of(thyroid_curve(), tmp_path)
    for tag, attributes in page.tags:
        for name in ("src", "href", "action", "srcset"):
            assert attributes.get(name, "data:,") == "data:,", tag
    policies = [a["content"] for t, a in page.tags if a.get("http-equiv")]
    assert policies[0].startswith("default-src 'none';")


def test_names_cannot_break_the_page(tmp_path):
    curve = nasty_curve()
    page = page_of(curve, tmp_path, title=NASTY)
    assert page.title.strip() == NASTY
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert not [tag for tag, _ in page.tags if tag in ("b", "img")]
    assert page.data["lines"]
    assert {line["name"] for line in page.data["lines"]} <= set(curve.models[0].feature_names_in_)
    assert not re.search("[<>&]", page.scripts[0])


def test_a_page_is_small_however_long_the_traces(tmp_path):
    path = write_report(wide_curve(n_tradeoffs=30), tmp_path / "page.html")
    assert path.stat().st_size < 200_000


def test_scores_that_are_not_numbers(tmp_path):
    curve = keep(thyroid_curve(), [0, 1])
    curve.traces.loc[curve.traces.n_iter == 3, "score"] = np.nan
    assert all(score is not None for _, score in page_of(curve, tmp_path).data["line"])


def test_writing_is_atomic(tmp_path, monkeypatch):
    curve = constant_curve()
    path = write_report(curve, str(tmp_path / "page.html"))
    assert os.listdir(tmp_path) == ["page.html"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match=r"cannot write .*page\.html: No space left on device"):
        write_report(curve, path, title="another")
    assert os.listdir(tmp_path) == ["page.html"]
    assert path.read_bytes() == before


def test_places_that_cannot_be_written(tmp_path):
    curve = constant_curve()
    with pytest.raises(FileNotFoundError, match="is not an existing folder"):
        write_report(curve, tmp_path / "missing" / "page.html")
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        write_report(curve, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileNotFoundError, match="is not an existing folder"):
        write_report(curve, tmp_path / "file" / "page.html")


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError, match="cannot write"):
            write_report(constant_curve(), tmp_path / "page.html")
    finally:
        tmp_path.chmod(0o700)


# The browser

FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run
    --disable-background-networking --disable-component-update --disable-sync
    --disable-dev-shm-usage --force-device-scale-factor=1"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    with webdriver.Chrome(options=options, service=service) as running:
        yield running


def opened(browser, curve, folder, width=1280, scheme="light"):
    """Open the report on a curve, with fresh logs."""
    device = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    path = write_report(curve, folder / "page.html")
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(path.as_uri())
    assert waited_for(browser, "#curve .steps")
    assert waited_for(browser, "#table tbody td")
    return path


def waited_for(browser, selector, seconds=20.0):
    """Elements of a page, which a busy browser may not have made yet."""
    found, end = [], time.monotonic() + seconds
    while not found and time.monotonic() < end:
        found = browser.find_elements("css selector", selector)
    return found


def requests(browser):
    """The addresses that the page asked for, once the browser tells of any."""
    found, end = [], time.monotonic() + 10.0
    while not found and time.monotonic() < end:
        log = browser.get_log("performance")
        entries = [json.loads(entry["message"])["message"] for entry in log]
        found += [
            entry["params"]["request"]["url"]
            for entry in entries
            if entry["method"] == "Network.requestWillBeSent"
        ]
    return found


def shown(browser, what):
    return browser.find_element("id", f"model-{what}").text


def move_slider(browser, position):
    browser.execute_script(
        "const slider = document.getElementById('slider'); slider.value = arguments[0];"
        "slider.dispatchEvent(new Event('input', {bubbles: true}));",
        position,
    )


@pytest.mark.browser
@pytest.mark.parametrize(
    "make", [thyroid_curve, wide_curve, constant_curve, nasty_curve, total_curve]
)
def test_page_loads_quietly(browser, make, tmp_path):
    path = opened(browser, make(), tmp_path)
    move_slider(browser, 300)
    assert browser.get_log("browser") == []
    asked = requests(browser)
    assert path.as_uri() in asked
    # What begins with chrome: is a picture of the browser's own.
    own = ("file", "data", "blob", "chrome")
    assert [url for url in asked if url.partition(":")[0] not in own] == []
    assert [url for url in asked if url.startswith("file:")] == [path.as_uri()]


def listed(browser):
    """What the model shown buys."""
    return [cell.text for cell in browser.find_elements("css selector", "#list td:first-child")]


@pytest.mark.browser
def test_a_page_opens_at_the_recommended_model(browser, tmp_path):
    curve = thyroid_curve()
    opened(browser, curve, tmp_path)
    steps = front_steps(curve)
    chosen = steps[recommended(steps)]
    assert shown(browser, "cost") == money(chosen.cost, "dollars")
    assert sorted(listed(browser)) == sorted(chosen.resources)
    heading = browser.find_element("id", "model-heading").text
    assert heading == f"Recommended: {money(chosen.cost, 'dollars')} a prediction"


@pytest.mark.browser
@pytest.mark.filterwarnings("ignore::greedymiser.BudgetWarning")
def test_slider_changes_the_model(browser, tmp_path):
    curve = thyroid_curve()
    opened(browser, curve, tmp_path)
    scores = []
    for position, step in reversed(list(enumerate(front_steps(curve, most=None)))):
        move_slider(browser, position)
        budget = float(browser.find_element("id", "budget").get_attribute("value"))
        best = curve.best(budget, train=False)
        assert shown(browser, "cost") == money(best.cost_, "dollars")
        assert int(shown(browser, "trees")) == best.ensemble_.n_trees
        assert int(shown(browser, "n-features")) == len(best.features_used_)
        assert sorted(listed(browser)) == sorted(best.resources_used_)
        marked = browser.find_elements("css selector", "#matrix tbody .chosen.bought")
        assert len(marked) == len(step.resources)
        scores.append(float(shown(browser, "score")))
    assert scores == sorted(scores, reverse=True)
    assert shown(browser, "cost") == "$0"


@pytest.mark.browser
def test_budget_can_be_typed_or_stepped(browser, tmp_path):
    opened(browser, thyroid_curve(), tmp_path)
    field = browser.find_element("id", "budget")
    field.clear()
    field.send_keys("46.49")
    below = shown(browser, "cost")
    field.clear()
    field.send_keys("46.5")
    assert (below, shown(browser, "cost")) == ("$45.50", "$46.50")
    snippet = browser.find_element("id", "snippet").text
    assert snippet == "model = curve.best(budget=46.5, train=False)"
    browser.find_element("id", "slider").send_keys("\ue012")  # the left arrow
    assert field.get_attribute("value") == "45.50"


@pytest.mark.browser
def test_a_printed_price_chooses_its_model(browser, tmp_path):
    curve = costly_trees()
    opened(browser, curve, tmp_path)
    field = browser.find_element("id", "budget")
    steps = front_steps(curve, most=None)
    printed = [money(step.cost, "dollars") for step in steps]
    assert any(round(step.cost, 2) < step.cost for step in steps)
    for price in printed[::7]:
        field.clear()
        field.send_keys(price.removeprefix("$"))
        assert shown(browser, "cost") == price
        last = max(i for i, other in enumerate(printed) if other == price)
        assert shown(browser, "trees") == str(steps[last].n_trees)


@pytest.mark.browser
def test_a_model_that_tables_leave_out_is_there_while_it_is_shown(browser, tmp_path):
    curve = costly_trees()
    opened(browser, curve, tmp_path)
    few, every = front_steps(curve), front_steps(curve, most=None)
    left_out = next(i for i, step in enumerate(every) if step not in few and step.cost > 0)

    def visible(selector):
        found = browser.find_elements("css selector", selector)
        return sum(element.is_displayed() for element in found)

    assert visible("#table tbody tr") == len(few) < len(every)
    assert (visible("#legend .entry-shown"), visible("#curve .shown")) == (0, 0)
    move_slider(browser, left_out)
    assert visible("#table tbody tr") == len(few) + 1
    assert visible("#table tbody .chosen") == visible("#matrix thead .chosen") == 1
    assert (visible("#legend .entry-shown"), visible("#curve .shown")) == (1, 1)


@pytest.mark.browser
def test_click_selects_a_point_or_a_column(browser, tmp_path):
    curve = thyroid_curve()
    opened(browser, curve, tmp_path)
    steps = front_steps(curve)
    browser.find_elements("css selector", "#curve .point")[0].click()
    assert shown(browser, "cost") == money(steps[1].cost, "dollars")  # the constant is not drawn
    browser.find_elements("css selector", "#matrix thead th")[-1].click()
    assert shown(browser, "cost") == money(steps[-1].cost, "dollars")


@pytest.mark.browser
def test_changes_lead_to_the_neighbours(browser, tmp_path):
    opened(browser, with_test_scores(thyroid_curve()), tmp_path)
    field = browser.find_element("id", "budget")
    field.clear()
    field.send_keys("46.5")
    lines = [line.text for line in browser.find_elements("css selector", "#changes li")]
    assert lines[0].startswith("Cheaper ($45.50): \N{MINUS SIGN} ")
    assert lines[1].startswith("More expensive ($57.81): + ")
    assert float(shown(browser, "test-score")) < float(shown(browser, "score"))


@pytest.mark.browser
def test_nasty_names_are_shown_as_they_are(browser, tmp_path):
    opened(browser, nasty_curve(), tmp_path)
    cells = browser.find_elements("css selector", "#matrix tbody th")
    assert any(cell.text.startswith(NASTY) for cell in cells)
    assert not browser.find_elements("css selector", "main b, main img")


LABELS = """
const boxes = [...document.querySelectorAll("#curve text")].map((e) => e.getBoundingClientRect());
const room = document.getElementById("curve").getBoundingClientRect();
const apart = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1
  || a.bottom <= b.top + 3 || b.bottom <= a.top + 3;
return [
  boxes.filter((box) => box.left < room.left - 1 || box.right > room.right + 1).length,
  boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => !apart(a, b))).length,
  document.querySelectorAll("#curve .label").length,
];
"""


@pytest.mark.browser
@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("make", [thyroid_curve, wide_curve])
def test_words_of_the_picture_are_whole_and_apart(browser, make, width, tmp_path):
    opened(browser, with_test_scores(make()), tmp_path, width=width)
    cut, covered, labels = browser.execute_script(LABELS)
    assert (cut, covered) == (0, 0)
    assert labels >= 2


@pytest.mark.browser
@pytest.mark.parametrize("make", [thyroid_curve, wide_curve, total_curve])
def test_no_section_is_empty_and_columns_are_even(browser, make, tmp_path):
    opened(browser, make(), tmp_path, width=1400)
    browser.execute_script("document.querySelector('details').open = true")
    letters = browser.execute_script(
        "return [...document.querySelectorAll('section')].map((e) => e.innerText.trim().length)"
    )
    assert min(letters) > 0
    left, right = browser.execute_script(
        "return [...document.querySelectorAll('.column')].map("
        "  (e) => e.lastElementChild.getBoundingClientRect().bottom)"
    )
    assert abs(left - right) < 150
    wide, main = browser.execute_script(
        "return ['#settings-section', 'main'].map("
        "  (name) => document.querySelector(name).getBoundingClientRect().width)"
    )
    assert wide == main


# Words that are on two lines.
BROKEN = """
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const broken = [];
while (walker.nextNode()) {
  if (walker.currentNode.parentElement.closest("script, style, svg, #matrix thead")) continue;
  for (const found of walker.currentNode.data.matchAll(/[^\\s_.\\/:-]+/g)) {
    const range = document.createRange();
    range.setStart(walker.currentNode, found.index);
    range.setEnd(walker.currentNode, found.index + found[0].length);
    const tops = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
    if (tops.size > 1) broken.push(found[0]);
  }
}
return broken;
"""


@pytest.mark.browser
@pytest.mark.parametrize("make", [thyroid_curve, wide_curve, total_curve])
def test_no_word_is_broken_on_a_phone(browser, make, tmp_path):
    opened(browser, make(), tmp_path, width=390)
    browser.execute_script("document.querySelector('details').open = true")
    assert browser.execute_script(BROKEN) == []


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("make", [thyroid_curve, wide_curve, nasty_curve])
def test_phone_needs_no_sideways_scrolling(browser, make, scheme, tmp_path):
    opened(browser, make(), tmp_path, width=390, scheme=scheme)
    width = "return document.documentElement.scrollWidth"
    assert browser.execute_script("return innerWidth") == 390
    assert browser.execute_script(width) == 390
    wide = browser.execute_script(
        "return [...document.querySelectorAll('main *')].filter("
        "  (e) => e.getBoundingClientRect().right > 391).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert wide == []


@pytest.mark.browser
def test_colours_follow_the_system(browser, tmp_path):
    opened(browser, thyroid_curve(), tmp_path)
    read = (
        "return [getComputedStyle(document.body).color,"
        " getComputedStyle(document.querySelector('#curve .steps')).stroke]"
    )
    light = browser.execute_script(read)
    media = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 50))")
    dark = browser.execute_script(read)
    assert all(one != other for one, other in zip(light, dark, strict=True))


# Protocols


@pytest.fixture(scope="module")
def row_curve():
    """A tenth of the rows need the dear column."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"<first>": rng.uniform(0, 10, 600), "dear": rng.uniform(0, 1, 600)})
    y = np.where(X["<first>"] > 9, 5 * X["dear"], 0.0)
    model = MiserRegressor(costs={"<first>": 1.0, "dear": 9.0}, charge="row", max_depth=2)
    more = {"tradeoffs": [1e-4], "search": "path", "X_val": X, "y_val": y}
    return tradeoff_curve(model.set_params(max_iter=3), X, y, **more), X


def test_reports_have_the_protocols_of_models_that_charge_by_row(row_curve, tmp_path):
    curve, X = row_curve
    given = page_of(curve, tmp_path, X=X).data
    assert given["steps"] == page_of(curve, tmp_path).data["steps"]  # that of the validation rows
    without = page_of(pickle.loads(pickle.dumps(curve)), tmp_path).data
    assert {step["protocol"] for step in without["steps"]} == {None}
    last = given["steps"][-1]
    told = last["protocol"]
    assert [step["name"] for step in told["steps"]] == ["<first>", "dear"]
    assert [step["depth"] for step in told["steps"]] == [0, 1]
    assert told["steps"][1]["conditions"].startswith("<first> > ")
    high = told["steps"][1]["share"]
    assert told["steps"][0]["ends"] == pytest.approx(1 - high)
    assert last["cost"] == pytest.approx(1.0 + 9.0 * high)
    # What is asked of some rows adds up to the mean.
    dear, first = (line["name"] for line in given["lines"])
    assert (dear, first) == ("dear", "<first>")
    assert last["list"] == [[0, f"{100 * high:.0f}%", amount(9.0 * high)], [1, "100%", "1"]]
    assert last["asked"] == {"trees_text": "", "mean_text": last["cost_text"]}


@pytest.mark.browser
def test_a_browser_shows_the_protocol(browser, row_curve, tmp_path):
    curve, X = row_curve
    browser.get(write_report(curve, tmp_path / "page.html", X=X).as_uri())
    assert waited_for(browser, "#curve .steps")
    move_slider(browser, len(front_steps(curve)) - 1)
    items = waited_for(browser, "#protocol li")
    assert [item.text.splitlines()[0] for item in items] == ["<first> (1)", "dear (9)"]
    assert "with <first> > " in items[1].text
    assert "over 600 rows" in browser.find_element("id", "list-note").text
    read = pickle.loads(pickle.dumps(curve))
    browser.get(write_report(read, tmp_path / "plain.html").as_uri())
    assert not browser.find_element("id", "protocol-part").is_displayed()


@pytest.mark.browser
@pytest.mark.parametrize("width", [1400, 390])
def test_what_rows_are_asked_for_fits_and_adds_up(browser, row_curve, width, tmp_path):
    curve, _ = row_curve
    opened(browser, curve, tmp_path, width=width)
    move_slider(browser, len(front_steps(curve, most=None)) - 1)
    rows = [row.text for row in browser.find_elements("css selector", "#list tbody tr")]
    mean = shown(browser, "cost")
    assert rows[-1] == f"mean of all rows {mean}"
    parts = [float(row.split()[-1]) for row in rows[:-1]]
    assert sum(parts) == pytest.approx(float(mean), abs=0.01)
    assert browser.execute_script(BROKEN) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
