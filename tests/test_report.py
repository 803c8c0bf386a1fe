"""The report is one safe file, and works in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import time
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("plotly")

from curves import (
    constant_curve,
    curve_of,
    keep,
    searched_curve,
    thyroid_curve,
    wide_curve,
    with_test_scores,
)
from greedymiser import MiserRegressor
from greedymiser.curve.curve import TradeoffCurve, tradeoff_curve
from greedymiser.plotting.report import MOST_POINTS, write_report

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
    assert [row["cost"] for row in data["chosen"]] == curve.points.cost.tolist()
    assert [row["test"] for row in data["chosen"]] == curve.points.test_score.tolist()
    assert [row["score"] for row in data["front"]] == curve.pareto().score.tolist()
    assert [trace["tradeoff"] for trace in data["traces"]] == curve.points.tradeoff.tolist()
    assert sum(len(trace["cost"]) for trace in data["traces"]) == len(curve.traces)
    assert data["total"] == 69.81
    for model, receipt in zip(curve.models, data["receipts"], strict=True):
        bought = [(line.iteration, line.feature, line.price) for line in model.receipt()]
        assert [(line["round"], line["feature"], line["price"]) for line in receipt] == bought


def test_features_are_sorted_by_price_and_know_their_users(tmp_path):
    curve = thyroid_curve()
    features = page_of(curve, tmp_path).data["features"]
    prices = [feature["price"] for feature in features]
    assert prices == sorted(prices)
    assert len(features) == 21
    for i, model in enumerate(curve.models):
        for n_iter in (0, 1, 7, model.n_iter_):
            if n_iter > model.n_iter_:
                continue
            used = [f["index"] for f in features if (f["first"][i] or 0) < n_iter
                    and f["first"][i] is not None]  # fmt: skip
            assert sorted(used) == model.truncate(n_iter).ensemble_.features
    fti = next(feature for feature in features if feature["name"] == "FTI")
    assert set(fti["needs"]) == {"blood_draw", "TT4", "T4U"}


def test_features_without_names(tmp_path):
    data = page_of(thyroid_curve(names=False, tree_cost=0.05), tmp_path).data
    assert {feature["name"] for feature in data["features"]} == {str(i) for i in range(21)}
    assert data["tree_cost"] == 0.05


def test_settings(tmp_path):
    settings = {line["name"]: line for line in page_of(thyroid_curve(), tmp_path).data["settings"]}
    assert settings["estimator"]["value"] == "MiserClassifier"
    assert settings["max_iter"] == {"name": "max_iter", "value": "40", "is_default": False}
    assert settings["max_depth"]["is_default"]
    assert "tradeoff" not in settings
    assert not any(" at 0x" in line["value"] for line in settings.values())


def test_nothing_comes_from_elsewhere(tmp_path):
    page = page_of(thyroid_curve(), tmp_path)
    assert "plotly.js v" in page.scripts[1]
    for tag, attributes in page.tags:
        for name in ("src", "href", "action", "srcset"):
            assert attributes.get(name, "data:,") == "data:,", tag
    policies = [a["content"] for t, a in page.tags if a.get("http-equiv")]
    assert policies[0].startswith("default-src 'none';")


def test_names_cannot_break_the_page(tmp_path):
    curve = nasty_curve()
    page = page_of(curve, tmp_path, title=NASTY)
    assert page.title.strip() == NASTY
    assert [tag for tag, _ in page.tags].count("script") == 3
    assert not [tag for tag, _ in page.tags if tag in ("b", "img")]
    assert {f["name"] for f in page.data["features"]} == set(curve.models[0].feature_names_in_)
    assert not re.search("[<>&]", page.scripts[0])


def test_long_traces_are_thinned(tmp_path):
    curve = keep(thyroid_curve(), [0])
    part = curve.traces.iloc[:41]
    long = part.loc[part.index.repeat(100)].reset_index(drop=True)
    long["n_iter"] = np.arange(len(long))
    long.loc[1777, "score"] = 0.0  # the best round
    thinned = page_of(TradeoffCurve(long, curve.models, "r2"), tmp_path)
    (trace,) = thinned.data["traces"]
    assert MOST_POINTS / 2 < len(trace["n_iter"]) <= MOST_POINTS + 30
    assert {0, 1777, len(long) - 1} <= set(trace["n_iter"])
    assert set(trace["cost"]) == set(part.cost)


def test_scores_that_are_not_numbers(tmp_path):
    curve = keep(thyroid_curve(), [0, 1])
    curve.traces.loc[curve.traces.n_iter == 3, "score"] = np.nan
    assert page_of(curve, tmp_path).data["traces"][0]["score"][3] is None


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


def test_without_plotly(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    with pytest.raises(ImportError, match=r"greedymiser\[report\]"):
        write_report(constant_curve(), tmp_path / "page.html")


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
    assert waited_for(browser, "#curve .scatterlayer .trace")
    assert waited_for(browser, "#features tbody td")
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


def receipt_of(browser):
    rows = browser.find_elements("css selector", "#receipt tbody tr td:nth-child(2)")
    return [row.text.splitlines()[0] for row in rows]


@pytest.mark.parametrize("make", [thyroid_curve, wide_curve, constant_curve, nasty_curve])
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


@pytest.mark.filterwarnings("ignore::greedymiser.BudgetWarning")
def test_slider_changes_the_model(browser, tmp_path):
    curve = thyroid_curve()
    opened(browser, curve, tmp_path)
    assert shown(browser, "cost") == "58.81 dollars"
    assert receipt_of(browser) == [line.feature for line in curve.best().receipt()]
    scores = []
    for position in (1000, 800, 700, 0):
        move_slider(browser, position)
        budget = float(browser.find_element("id", "budget").get_attribute("value"))
        best = curve.best(budget)
        assert float(shown(browser, "cost").split()[0]) == pytest.approx(best.cost_, rel=1e-5)
        assert int(shown(browser, "trees")) == best.ensemble_.n_trees
        assert int(shown(browser, "n-features")) == len(best.features_used_)
        assert receipt_of(browser) == [line.feature for line in best.receipt()]
        marked = browser.find_elements("css selector", "#features tr.used td:first-child")
        assert {row.text.splitlines()[0] for row in marked} == set(best.features_used_)
        scores.append(float(shown(browser, "score")))
    assert scores == sorted(set(scores), reverse=True)
    assert shown(browser, "cost") == "0 dollars"


def test_budget_can_be_typed_or_stepped(browser, tmp_path):
    opened(browser, thyroid_curve(), tmp_path)
    field = browser.find_element("id", "budget")
    field.clear()
    field.send_keys("46.49")
    below = shown(browser, "cost")
    field.clear()
    field.send_keys("46.5")
    assert (below, shown(browser, "cost")) == ("45.5 dollars", "46.5 dollars")
    assert browser.find_element("id", "snippet").text == "curve.best(budget=46.5)"
    browser.find_element("id", "slider").send_keys("\ue012" * 20)  # the left arrow
    assert float(field.get_attribute("value")) < 46.5


def test_a_page_tells_what_a_search_has_found(browser, tmp_path):
    curve = searched_curve()
    opened(browser, curve, tmp_path)
    summary = browser.find_element("id", "summary").text
    assert summary.startswith("4 tradeoffs, 2 sets of features found by the search, 21 features")
    # A curve that has its data might train another model than the page shows.
    assert browser.find_element("id", "snippet").text.endswith(", train=False)")
    assert shown(browser, "tradeoff") == "0"
    field = browser.find_element("id", "budget")
    field.clear()
    field.send_keys("46.5")
    assert shown(browser, "tradeoff") == "search"
    assert browser.get_log("browser") == []


def test_click_selects_a_point(browser, tmp_path):
    from selenium.webdriver import ActionChains

    curve = thyroid_curve()
    opened(browser, curve, tmp_path)
    # Where the best round at tradeoff 0.005 is drawn, in pixels from the middle of the plot.
    where = browser.execute_script(
        "const plot = document.getElementById('curve'), {xaxis, yaxis} = plot._fullLayout;"
        "const box = plot.getBoundingClientRect();"
        "return [xaxis.l2p(arguments[0]) + xaxis._offset - box.width / 2,"
        "        yaxis.l2p(arguments[1]) + yaxis._offset - box.height / 2];",
        float(curve.points.cost[3]),
        float(curve.points.score[3]),
    )
    plot = browser.find_element("id", "curve")
    ActionChains(browser).move_to_element_with_offset(plot, *map(round, where)).click().perform()
    assert shown(browser, "cost") == "35.19 dollars"
    assert shown(browser, "tradeoff") == "0.005"
    code = browser.find_element("id", "snippet").text
    assert code == f"curve.models[3].truncate({curve.points.n_iter[3]})"
    model = eval(code, {"curve": curve})
    assert shown(browser, "rounds") == str(model.n_iter_)
    assert receipt_of(browser) == [line.feature for line in model.receipt()]


def test_test_scores_can_be_drawn(browser, tmp_path):
    opened(browser, with_test_scores(thyroid_curve()), tmp_path)
    read = "return document.getElementById('curve').layout.yaxis.title.text"
    assert browser.execute_script(read) == "validation neg_log_loss"
    browser.find_element("id", "test").click()
    browser.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0]))")
    assert browser.execute_script(read) == "test neg_log_loss"
    assert float(shown(browser, "test-score")) < float(shown(browser, "score"))


def test_features_can_be_sorted(browser, tmp_path):
    opened(browser, thyroid_curve(), tmp_path)

    def names():
        cells = browser.find_elements("css selector", "#features tbody td:first-child")
        return [cell.text.splitlines()[0] for cell in cells]

    assert names()[-1] == "FTI"
    browser.find_element("css selector", "#features button[data-key=price]").click()
    assert names()[0] == "FTI"
    browser.find_element("css selector", "#features button[data-key=name]").click()
    assert names()[0].lower() == "age"


def test_nasty_names_are_shown_as_they_are(browser, tmp_path):
    curve = nasty_curve()
    opened(browser, curve, tmp_path)
    cells = browser.find_elements("css selector", "#features tbody td:first-child")
    assert NASTY in {cell.text for cell in cells}
    assert not browser.find_elements("css selector", "main b, main img")
    title = browser.find_element("css selector", "#curve .ytitle").text
    assert title == f"validation {NASTY}"


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


def test_colours_follow_the_system(browser, tmp_path):
    opened(browser, thyroid_curve(), tmp_path)
    read = (
        "return [getComputedStyle(document.body).color,"
        " document.getElementById('curve').layout.font.color]"
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
    without = page_of(curve, tmp_path).data
    assert {row["protocol"] for row in without["front"]} == {None}
    told = page_of(curve, tmp_path, X=X).data["front"][-1]["protocol"]
    assert [step["name"] for step in told["steps"]] == ["<first>", "dear"]
    assert [step["depth"] for step in told["steps"]] == [0, 1]
    assert told["steps"][1]["conditions"].startswith("<first> > ")
    high = told["steps"][1]["share"]
    assert told["steps"][0]["ends"] == pytest.approx(1 - high)
    assert told["mean_cost"] == pytest.approx(1.0 + 9.0 * high)
    assert told["n_rows"] == 600


def test_a_browser_shows_the_protocol(browser, row_curve, tmp_path):
    curve, X = row_curve
    browser.get(write_report(curve, tmp_path / "page.html", X=X).as_uri())
    cells = waited_for(browser, "#protocol tbody tr td:first-child")
    assert [cell.text.splitlines()[0] for cell in cells] == ["<first>", "dear"]
    assert cells[1].text.splitlines()[1].startswith("if <first> > ")
    assert "600 rows cost " in browser.find_element("id", "protocol-note").text
    browser.get(write_report(curve, tmp_path / "plain.html").as_uri())
    assert not browser.find_element("id", "protocol-part").is_displayed()
