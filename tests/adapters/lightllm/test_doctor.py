"""The doctor: names each thing that keeps dynamic mode from starting, with its remedy, and imports nothing for it."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from lightspec_lightllm.adapters.cost_tables import CostTables
from lightspec_lightllm.adapters.lightllm import costs, doctor, signatures
from lightspec_lightllm.adapters.lightllm.costs import CostKey, StoredCosts
from lightspec_lightllm.adapters.lightllm.doctor import Finding, examine
from lightspec_lightllm.adapters.lightllm.hooks import HOOKS
from lightspec_lightllm.cli import main
from lightspec_lightllm.engine.fetch import cache_dir
from tests.adapters.lightllm import trees
from tests.adapters.lightllm.drafters.folders import CONFIGS, write
from tests.adapters.lightllm.test_arguments import model


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what is relied on, to be changed."""
    return trees.copy_to(tmp_path / "tree")


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """Arguments of a server that would start."""
    return [
        *("--model_dir", model(tmp_path / "target", "mistral"), "--mtp_mode", "eagle_no_att", "--mtp_step", "3"),
        *("--mtp_draft_model_dir", model(tmp_path / "drafter", "mistral"), "--dynamic_mtp"),
    ]


def told(findings: list[Finding], level: str) -> list[str]:
    return [finding.text for finding in findings if finding.level == level]


def the_problem(folder: Path | None, command: list[str] | None = None) -> str:
    """The one problem that there is."""
    (problem,) = told(list(examine(folder, command)), "problem")
    return problem


def test_all_is_well_with_the_commit_that_it_was_written_for(command: list[str]) -> None:
    findings = list(examine(trees.source(), command))
    assert told(findings, "problem") == []
    everything = "\n".join(map(str, findings))
    assert f"all {len(HOOKS)} hook targets" in everything
    assert "eagle_no_att, K = 3" in everything
    assert "decode attention" in everything
    assert "one is measured when the server starts" in everything


def test_no_lightllm_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no LightLLM in" in the_problem(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "LightLLM is not installed here" in the_problem(None)


@pytest.mark.parametrize(
    ("file", "change", "named"),
    [
        (
            "lightllm/common/basemodel/cuda_graph.py",
            lambda text: text.replace("(max_batch_size=8, tp_world_size: int = 1):", "(max_batch_size=8):"),
            "CudaGraph.gen_cuda_graph_batch_sizes: expected @staticmethod (max_batch_size=8, tp_world_size=1), found",
        ),
        (
            "lightllm/server/router/stats.py",
            lambda text: text.replace("def log_str(self)", "def log_str(self, verbose=False)"),
            "RouterStatics.log_str: expected (self), found (self, verbose=False)",
        ),
        (
            "lightllm/common/basemodel/batch_objs.py",
            lambda text: text.replace("    b_mtp_index: torch.Tensor = None\n", ""),
            "ModelInput: expected the fields b_mtp_index",
        ),
        (
            "lightllm/server/router/model_infer/model_rpc.py",
            lambda text: text.replace("ChunkedPrefillBackend", "PlainBackend"),
            "model_rpc:ChunkedPrefillBackend: expected the name, found nothing",
        ),
    ],
    ids=["older: an argument is missing", "newer: an argument more", "a field is gone", "renamed"],
)
def test_another_lightllm_is_named_with_what_differs(
    file: str, change: Callable[[str], str], named: str, tree: Path
) -> None:
    assert told(list(examine(tree)), "problem") == []
    trees.edit(tree / file, change)
    problem = the_problem(tree)
    assert named in problem
    assert problem.endswith(f"install LightLLM at commit {signatures.COMMIT}")


def test_the_version_is_that_of_the_tree(tree: Path) -> None:
    assert f"LightLLM {signatures.VERSION} in {trees.source()}" in "\n".join(map(str, examine(trees.source())))
    assert "LightLLM of unknown version in" in "\n".join(map(str, examine(tree)))
    info = tree / "lightllm-9.8.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: lightllm\nVersion: 9.8\n", encoding="utf-8")
    assert "LightLLM 9.8 in" in "\n".join(map(str, examine(tree)))


def test_a_file_that_is_gone_is_named(tree: Path) -> None:
    path = tree / "lightllm" / "server" / "router" / "stats.py"
    path.unlink()
    assert f"no file {path}" in the_problem(tree)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["--dp", "2"], "--dp 2 does not go with --dynamic_mtp"),
        (["--output_constraint_mode", "xgrammar"], "--output_constraint_mode xgrammar"),
        (["--diverse_mode"], "--diverse_mode does not go with"),
        (["--mtp_step", "16"], "--mtp_step: expected 1 to 15 with --dynamic_mtp, got 16"),
        (["--mtp_step", "0"], "--mtp_step: expected 1 to 15"),
        (["--mtp_draft_model_dir", "/nowhere"], "--mtp_draft_model_dir: expected a folder with config.json, /nowhere"),
        (["--mtp_mode", "eagle_with_att"], "use eagle_no_att"),
        (["--lightspec_config", "/nowhere.yaml"], "config /nowhere.yaml cannot be read"),
        (["--llm_kv_type", "int8kv", "--llm_decode_att_backend", "fa3"], "has no int8kv cache in LightLLM; use triton"),
        (["--no_such_option"], "LightLLM does not take these arguments: unrecognized arguments: --no_such_option"),
        (["--run_mode", "pd"], "invalid choice: 'pd'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_conflict_are_named(change: list[str], named: str, command: list[str]) -> None:
    assert named in the_problem(trees.source(), [*command, *change])


def test_a_drafter_of_another_width_on_several_ranks_is_named(tmp_path: Path) -> None:
    target = {"model_type": "qwen3", "hidden_size": 64, "vocab_size": 128, "num_hidden_layers": 12}
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text(json.dumps(target), encoding="utf-8")
    folder = write(tmp_path / "wide", {**CONFIGS["common"], "hidden_size": 128, "target_hidden_size": 64})
    given = ["--dynamic_mtp", "--mtp_mode", "eagle3", "--mtp_step", "3", "--tp", "2"]
    given += ["--model_dir", str(tmp_path / "target"), "--mtp_draft_model_dir", str(folder)]
    assert the_problem(trees.source(), given).endswith("add --disable_flashinfer_allreduce")
    assert told(list(examine(trees.source(), [*given, "--disable_flashinfer_allreduce"])), "problem") == []


def test_an_attention_without_its_package_is_named(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_is_there", lambda package: package != "sgl_kernel")
    assert "needs sgl_kernel, which is absent" in the_problem(
        trees.source(), [*command, "--llm_decode_att_backend", "fa3"]
    )
    (line,) = [text for text in told(list(examine(trees.source(), command)), "ok") if "decode attention" in text]
    assert "flashinfer, triton" in line


def test_arguments_without_the_flag_get_a_note(command: list[str]) -> None:
    findings = list(examine(trees.source(), command[:-1]))
    assert told(findings, "problem") == []
    assert any("add --dynamic_mtp" in note for note in told(findings, "note"))


def test_a_parser_that_cannot_be_run_is_named(tree: Path, command: list[str]) -> None:
    trees.edit(tree / "lightllm" / "server" / "api_cli.py", lambda text: f"import nowhere_at_all\n{text}")
    assert "cannot be run: No module named 'nowhere_at_all'" in the_problem(tree, command)


def stored(tmp_path: Path, **changes: object) -> StoredCosts:
    key = CostKey(
        model=costs.config_sha256(tmp_path / "target"),
        drafters=(costs.config_sha256(tmp_path / "drafter"),),
        mtp_mode="eagle_no_att",
        max_draft_steps=3,
        device="a card",
        dtype="float16, weights none, kv None",
        tp=1,
        attention=("TritonAttBackend",),
        graphs=True,
        rows=(1, 2),
        draft_rows=(1, 2),
        contexts=(512,),
        versions=costs.versions(),
    )
    key = CostKey(**{**asdict(key), **changes})
    return StoredCosts(costs.FORMAT, key, CostTables(target={1: 1.0, 2: 1.5}, draft={1: 0.1, 2: 0.1}))


def test_a_table_in_the_cache_that_fits_is_named_with_its_card(
    tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTSPEC_CACHE", str(tmp_path / "cache"))
    table = stored(tmp_path)
    costs.write(table.key.path, table)
    other = stored(tmp_path, tp=8)
    costs.write(other.key.path, other)
    (cache_dir() / "costs" / "lightllm" / "damaged.json").write_text("{", encoding="utf-8")
    findings = list(examine(trees.source(), command))
    lines = [text for text in told(findings, "ok") if "cost table" in text]
    assert lines == [f"cost table {table.key.path}, measured on a card, fits"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_draft_steps": 7}, "max_draft_steps 7, not 3"),
        ({"model": "0"}, "model '0', not"),
        ({"tp": 2}, "tp 2, not 1"),
        ({"versions": {}}, "versions {}, not"),
        ({"graphs": False}, "graphs False, not True"),
    ],
)
def test_a_named_table_of_another_setup_is_a_problem(
    changes: dict[str, object], named: str, tmp_path: Path, command: list[str]
) -> None:
    path, config = tmp_path / "table.json", tmp_path / "lightspec.yaml"
    config.write_text(f"costs: {{path: {path}}}", encoding="utf-8")
    command += ["--lightspec_config", str(config)]
    assert "cannot be read" in the_problem(trees.source(), command)
    costs.write(path, stored(tmp_path))
    assert told(list(examine(trees.source(), command)), "problem") == []
    costs.write(path, stored(tmp_path, **changes))
    problem = the_problem(trees.source(), command)
    assert named in problem
    assert "take costs.path out" in problem
    path.write_text(json.dumps({}), encoding="utf-8")
    assert "is damaged" in the_problem(trees.source(), command)


def test_the_command_prints_a_line_each_and_tells_problems_by_its_status(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(trees.source())
    assert main(["doctor", "--lightllm", folder, "--", *command]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "note"}
    assert main(["doctor", "--lightllm", folder, "--", *command, "--dp", "2"]) == 1
    assert any(line.startswith("problem  --dp 2") for line in capsys.readouterr().out.splitlines())
    assert main(["doctor", "--lightllm", folder]) == 0


def test_neither_torch_nor_lightllm_is_imported(command: list[str]) -> None:
    arguments = ["doctor", "--lightllm", str(trees.source()), "--", *command]
    code = (
        "import sys\nfrom lightspec_lightllm.cli import main\n"
        f"assert main({arguments!r}) == 0\n"
        "assert not {'torch', 'lightllm', 'triton', 'transformers'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
