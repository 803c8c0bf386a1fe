"""The command line of the experiments: resuming, complaints, and where results go."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.__main__ import main


def complain(capsys, *arguments: object) -> str:
    """Run an experiment that must fail with one sentence, and return it."""
    assert main([str(argument) for argument in arguments]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("Error: ")
    return said[0].removeprefix("Error: ")


def test_an_experiment_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    command = ["yahoo", "--small", "--out", str(tmp_path / "out"), "--jobs", "1"]
    with monkeypatch.context() as patch:

        def interrupted(*_, **__):
            raise KeyboardInterrupt

        patch.setattr("experiments.cronus.Cronus.fit", interrupted)
        assert main(command) == 130
    assert "Finished steps are kept" in capsys.readouterr().err
    assert not (tmp_path / "out" / "comparison.csv").exists()
    # Early exits are finished: whoever tries them again is interrupted again.
    monkeypatch.setattr("greedymiser.cascades.early_exit.EarlyExit.sweep", interrupted)
    assert main(command) == 0
    said = capsys.readouterr()
    assert "Cronus over" in said.err
    assert "miser + early exit" in said.out
    assert "SYNTHETIC" in said.out
    for name in ("comparison.csv", "points.csv", "methods.png", "traces.png", "features.png"):
        assert str(tmp_path / "out" / name) in said.out
        assert (tmp_path / "out" / name).stat().st_size > 0
    # Nothing else is written beside them.
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert all(name == "cache" or name.endswith((".csv", ".png")) for name in names)


def test_an_experiment_needs_its_data(tmp_path, capsys):
    assert "mq2008 needs data" in complain(capsys, "mq2008", "--out", tmp_path)
    assert "scene15 needs data" in complain(capsys, "scene15", "--out", tmp_path)
    (tmp_path / "data").mkdir()
    said = complain(capsys, "mq2008", "--data", tmp_path / "data", "--out", tmp_path / "out")
    assert "S1.txt" in said
    with pytest.raises(SystemExit) as ended:
        main(["elsewhere"])
    assert ended.value.code == 2


def test_results_do_not_go_into_the_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("folder/S1.txt").write_text("precious")
    said = complain(capsys, "mq2008", "--data", "folder", "--out", "folder/results/deep")
    assert said == "--out 'folder/results/deep' is in the folder of the data, 'folder'"
    # Nor where they would go by default.
    Path("results").mkdir()
    Path("results/mq2008").symlink_to(Path("folder").resolve())
    assert "'results/mq2008' is in the folder" in complain(capsys, "mq2008", "--data", "folder")
    assert [path.name for path in Path("folder").iterdir()] == ["S1.txt"]
