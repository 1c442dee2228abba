# SPDX-License-Identifier: MIT
"""The table of registers and spills: what is read, and what a change looks like."""

from pathlib import Path

import pytest

import cuda_resources

# As ptxas prints it: a template, a function that is no kernel, and a kernel that spills.
LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{f64}' for 'sm_90a'
ptxas info    : Function properties for {f64}
    400 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 400 bytes cumulative stack size, 256 bytes smem
ptxas info    : Compile time = 197.104 ms
ptxas info    : Function properties for {helper}
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function '{plain}' for 'sm_75'
ptxas info    : Function properties for {plain}
    40 bytes stack frame, 44 bytes spill stores, 48 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 360 bytes cmem[0]
""".format(
    f64="_ZN4attn40_GLOBAL__N__594b516f_8_tiled_cu_c0f3eaf95fusedILi64ELb1ENS_1SEEEvPfPFffE",
    helper="_ZN34_INTERNAL_89b8bf71_4_t_cu_525d0b214attn4deepEPfi",
    plain="_ZN4attn5plainEPf",
)
CLEAN = LOG.replace("44 bytes spill stores, 48", "0 bytes spill stores, 0")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "rung.cu.log"
    path.write_text(CLEAN)
    return path


def resources(log: Path, *more: str, nvcc: str = "13.0.88") -> int:
    table = str(log.parent / "resources.csv")
    words = [str(log), "--table", table, "--nvcc", nvcc, "--rewrite-command", "make the table"]
    return cuda_resources.main([*words, *more])


def test_what_ptxas_says_is_a_row_a_function(log: Path) -> None:
    assert resources(log, "--write") == 0
    lines = (log.parent / "resources.csv").read_text().splitlines()
    assert lines == [
        "nvcc,file,kernel,architecture,registers,static_shared_bytes,stack_bytes,"
        "spill_store_bytes,spill_load_bytes",
        "13.0.88,rung.cu,deep,sm_90a,,,0,0,0",
        '13.0.88,rung.cu,"fused<64, true, S>",sm_90a,40,256,400,0,0',
        "13.0.88,rung.cu,plain,sm_75,32,0,40,0,0",
    ]
    assert resources(log) == 0


def test_architectures_are_in_the_order_of_their_numbers(log: Path) -> None:
    log.write_text(CLEAN.replace("sm_90a", "sm_100").replace("sm_75", "sm_80") + CLEAN)
    resources(log, "--write")
    lines = (log.parent / "resources.csv").read_text().splitlines()
    assert [line.split(",")[-6] for line in lines if '"fused' in line] == ["sm_90a", "sm_100"]


def test_a_change_names_kernel_architecture_old_and_new(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resources(log, "--write")
    capsys.readouterr()
    log.write_text(
        CLEAN.replace("Used 40 registers", "Used 42 registers").replace("sm_75", "sm_80")
    )
    assert resources(log) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "rung.cu fused<64, true, S> sm_90a: registers 40 -> 42"
    assert said[1] == "rung.cu plain sm_75: gone"
    assert said[2].startswith("rung.cu plain sm_80: new: registers 32, static_shared_bytes 0, ")
    assert said[3].startswith("cuda_resources: 3 rows of ")
    assert said[4] == "rewrite it with: make the table"


def test_a_spill_is_written_into_the_table_only_when_asked_for(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resources(log, "--write")
    log.write_text(LOG)
    assert resources(log) == 1
    assert "plain sm_75: spill_store_bytes 0 -> 44, spill_load_bytes 0 -> 48" in (
        capsys.readouterr().out
    )
    with pytest.raises(cuda_resources.BadInputError, match="--allow-spills"):
        resources(log, "--write")
    assert "plain sm_75: spill_store_bytes 44, spill_load_bytes 48" in capsys.readouterr().err
    assert resources(log) == 1
    assert resources(log, "--write", "--allow-spills") == 0
    assert resources(log) == 0


def test_the_table_of_another_nvcc_is_not_compared_with(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resources(log, "--write")
    capsys.readouterr()
    log.write_text(LOG)
    assert resources(log, nvcc="13.1.2") == cuda_resources.SKIPPED
    said = capsys.readouterr().out
    assert "13.0.88" in said
    assert "13.1.2" in said


def test_what_is_no_table_and_no_log_is_said_in_one_sentence(log: Path) -> None:
    (log.parent / "resources.csv").write_text("a,b\n1,2\n")
    with pytest.raises(cuda_resources.BadInputError, match="no table of one nvcc"):
        resources(log)
    log.write_text("nvcc warning : nothing to do\n")
    with pytest.raises(cuda_resources.BadInputError, match="no kernel in any log"):
        resources(log)


def test_kernels_that_cannot_be_told_apart_are_refused(log: Path) -> None:
    log.write_text(CLEAN + CLEAN.replace("_ZN4attn5plainEPf", "_ZN4attn5plainEPi"))
    with pytest.raises(cuda_resources.BadInputError, match="two kernels"):
        resources(log, "--write")
