"""train.py started by torchrun or srun: the bits of one process, on one machine and on
two."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedbed import record
from seedbed.errors import InputError
from seedbed.launch import ranks
from tests.end_to_end.live import begin, rows
from tests.running import QUICK, ROOT, command, trained
from tests.ways import differences

WORDS = (*QUICK, "trainer.shards=2", "data.batch_size=32")
TORCHRUN = ("-m", "torch.distributed.run")
STANDALONE = (*TORCHRUN, "--standalone", "--nproc-per-node=2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run on one process."""
    return trained(tmp_path_factory.mktemp("whole") / "run", *WORDS)


@pytest.mark.long
def test_torchrun_has_the_bits_of_one_process_and_repeats(
    whole: Path, tmp_path: Path
) -> None:
    """The same command again is done at once, in all ranks."""
    words = (*STANDALONE, "train.py", f"hydra.run.dir={tmp_path / 'run'}", *WORDS)
    done = command(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished after") == 1, "one process speaks"
    assert differences(whole, tmp_path / "run") == []
    assert (
        record.read_json(tmp_path / "run/environment.json")["processes"]["count"] == 2
    )
    assert not [*(tmp_path / "run").glob(".ranks*")]
    again = command(*words)
    assert (again.returncode, again.stdout.count("nothing to do")) == (
        0,
        1,
    ), again.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (("trainer.shards=1",), 1, "error: trainer.shards: expected >= 2"),
        (
            ("trainer.processes=4", "trainer.shards=4"),
            1,
            "error: trainer.processes: expected 1, or 2",
        ),
        (("-m", "seed=1,2"), 1, "error: -m: expected one run"),
        (("--cfg", "job"), 0, ""),
    ],
    ids=["shards", "processes", "sweep", "cfg"],
)
def test_what_rank_0_refuses_ends_all_ranks(
    words: tuple[str, ...], status: int, line: str, tmp_path: Path
) -> None:
    """One rank says why; torchrun's own status is 1."""
    done = command(*STANDALONE, "train.py", f"hydra.run.dir={tmp_path / 'run'}", *words)
    ours = [each for each in done.stderr.splitlines() if each.startswith("error: ")]
    assert done.returncode == status, done.stderr
    assert len(ours) == bool(line), done.stderr
    assert all(each.startswith(line) for each in ours)
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_what_rank_0_refuses_ends_all_ranks_of_srun(tmp_path: Path) -> None:
    """No agent kills them, and rank 0 serves the store: a run of another configuration,
    and one that never begins. The folder is free for the command that is right."""
    run = tmp_path / "run"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def trained(*words: str) -> list[tuple[int, str]]:
        common = {
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
        }
        processes = []
        for rank in "01":
            own = {**common, "RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": str(port)}
            line = (f"hydra.run.dir={run}", *QUICK, "data.batch_size=200", *words)
            processes.append(begin("train.py", *line, env={**os.environ, **own}))
        ended = [process.communicate(timeout=100) for process in processes]
        return [
            (p.returncode, err) for p, (_, err) in zip(processes, ended, strict=True)
        ]

    for shards, status in ((1, 2), (2, 0), (4, 2)):
        found = trained(f"trainer.shards={shards}")
        assert [each for each, _ in found] == [status] * 2, found
        errors = [
            line for _, err in found for line in err.splitlines() if "error: " in line
        ]
        assert len(errors) == bool(status), errors
        assert (run / "metrics.csv").exists() is (shards > 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("config.yaml", signal.SIGKILL),
        ("metrics.csv", signal.SIGKILL),
        ("config.yaml", signal.SIGTERM),
    ],
)
def test_ranks_end_with_their_torchrun(
    whole: Path, tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    """As they start, and in training; the command given again ends with the same bits.
    torchrun kills ranks 30 seconds after a SIGTERM: they end before."""
    run = tmp_path / "run"
    words = (*STANDALONE, "train.py", f"hydra.run.dir={run}", *WORDS)
    torchrun = begin(*words)
    while not (run / moment).exists():
        assert torchrun.poll() is None
        time.sleep(0.01)
    torchrun.send_signal(number)
    # the pipes are open until all ranks have ended
    _, errors = torchrun.communicate(timeout=25)
    assert "seedbed" not in errors, "a traceback"
    begun = (run / "summary.json").exists()
    assert not begun or record.read_summary(run)["status"] != "running"
    again = command(*words)
    assert again.returncode == 0, again.stderr
    assert differences(whole, run) == []


@pytest.mark.long
def test_a_rank_that_waits_for_rank_0_can_be_stopped() -> None:
    """Nobody serves a store, as under srun before rank 0 has composed the run."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    rank = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    process = subprocess.Popen(
        [sys.executable, "train.py"],
        cwd=ROOT,
        env={**os.environ, **rank, **place},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    time.sleep(5)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in errors


def test_ranks_without_their_variables_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    assert ranks.join() is None
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(
        InputError, match=r"^WORLD_SIZE: expected a number, .* got two$"
    ):
        ranks.join()
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name, value in (("RANK", "1"), ("LOCAL_RANK", "1"), ("MASTER_PORT", "29500")):
        with pytest.raises(
            InputError, match=f"^{name}: expected a number below .* got none$"
        ):
            ranks.join()
        monkeypatch.setenv(name, "99999")
        with pytest.raises(
            InputError, match=f"^{name}: expected a number below .* got 99999$"
        ):
            ranks.join()
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=r"^MASTER_ADDR: expected a host"):
        ranks.join()
    monkeypatch.setenv("MASTER_ADDR", "a")
    assert ranks.join() == 1


HOSTS = (("seedbedA", "10.77.0.1", "sbA"), ("seedbedB", "10.77.0.2", "sbB"))


@pytest.fixture
def hosts() -> Iterator[None]:
    """Two network namespaces, joined by a veth pair, as two machines."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("needs root and iproute2, to make network namespaces")

    def ip(*words: str, check: bool = True) -> None:
        subprocess.run(["ip", *words], check=check, capture_output=True)

    (a, _, link_a), (b, _, link_b) = HOSTS
    for name in (a, b):
        ip("netns", "delete", name, check=False)
        ip("netns", "add", name)
    ip(
        "link",
        "add",
        link_a,
        "netns",
        a,
        "type",
        "veth",
        "peer",
        "name",
        link_b,
        "netns",
        b,
    )
    for name, address, link in HOSTS:
        ip("-n", name, "address", "add", f"{address}/24", "dev", link)
        ip("-n", name, "link", "set", link, "up")
        ip("-n", name, "link", "set", "lo", "up")
    yield
    for name, *_ in HOSTS:
        inside = subprocess.run(
            ["ip", "netns", "pids", name], capture_output=True, text=True
        )
        for pid in map(int, inside.stdout.split()):
            os.kill(pid, signal.SIGKILL)
        ip("netns", "delete", name)


def agents(*words: str, hidden: Path | None = None) -> list[subprocess.Popen[str]]:
    """Start torchrun on both hosts; the second does not see the files in the folder
    `hidden`."""
    started = []
    for number, (name, address, link) in enumerate(HOSTS):
        is_host = f"--rdzv-conf=is_host={'false' if number else 'true'}"
        rendezvous = (
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=10.77.0.1:29400",
            "--rdzv-id=1",
        )
        options = (
            "--nnodes=2",
            "--nproc-per-node=1",
            f"--local-addr={address}",
            is_host,
        )
        python = [sys.executable, *TORCHRUN, *rendezvous, *options, "train.py", *words]
        hide = [
            "unshare",
            "-m",
            "sh",
            "-c",
            'mount -t tmpfs none "$0" && exec "$@"',
            str(hidden),
        ]
        shell = [
            "ip",
            "netns",
            "exec",
            name,
            *(hide if hidden and number else []),
            *python,
        ]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": link}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            shell,
            cwd=ROOT,
            env=environment,
            text=True,
            start_new_session=True,
            **streams,
        )
        started.append(process)
    return started


@pytest.mark.long
@pytest.mark.usefixtures("hosts")
def test_a_host_that_does_not_see_the_run_folder_is_named_at_the_start(
    tmp_path: Path,
) -> None:
    """In one line of each host. Negative control: the next test."""
    place = tmp_path / "runs"
    place.mkdir()
    began = time.monotonic()
    both = agents(f"hydra.run.dir={place / 'run'}", *WORDS, hidden=place)
    line = (
        "error: hydra.run.dir: expected a folder that all machines share, got"
        f" {place / 'run'}, "
    )
    for process in both:
        _, errors = process.communicate(timeout=200)
        assert process.returncode != 0
        ours = [each for each in errors.splitlines() if each.startswith("error: ")]
        assert len(ours) == 1, errors
        assert ours[0].startswith(f"{line}which rank 1 on "), errors
    assert time.monotonic() - began < 120
    assert not (place / "run/metrics.csv").exists()
    assert not [*(place / "run").glob(".ranks*")]


@pytest.mark.long
@pytest.mark.usefixtures("hosts")
def test_two_hosts_resume_to_the_same_bits(whole: Path, tmp_path: Path) -> None:
    """Interrupted on both, as by a scheduler, and started again by the same command."""
    folder = tmp_path / "run"
    words = (f"hydra.run.dir={folder}", *WORDS, "trainer.checkpoint_every_steps=2")
    first = agents(*words)
    until = time.monotonic() + 200
    while not (folder / "metrics.csv").exists() or rows(folder) < 4:
        assert time.monotonic() < until, [each.poll() for each in first]
        time.sleep(0.002)
    for process in first:
        process.send_signal(signal.SIGTERM)
    for process in first:
        process.communicate(timeout=200)
    assert record.read_summary(folder)["status"] == "interrupted"
    for process in agents(*words):
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    assert "resuming after step" in (folder / "train.log").read_text(), out
    assert differences(whole, folder) == []


@pytest.mark.long
@pytest.mark.usefixtures("hosts")
def test_a_rank_killed_on_the_other_host_ends_both(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    more = ("trainer.max_steps=100000", "trainer.max_epochs=10000")
    both = agents(f"hydra.run.dir={folder}", *WORDS, *more)
    until = time.monotonic() + 200
    while not (folder / "metrics.csv").exists() or rows(folder) < 4:
        assert time.monotonic() < until, [each.poll() for each in both]
        time.sleep(0.01)
    inside = subprocess.run(
        ["ip", "netns", "pids", HOSTS[1][0]], capture_output=True, text=True
    )
    # torchrun's processes have sessions of their own
    for pid in map(int, inside.stdout.split()):
        os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    _, errors = both[0].communicate(timeout=200)
    assert both[0].returncode != 0
    assert time.monotonic() - began < 60
    ours = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(ours) == 1, errors
    assert ours[0].startswith("error: rank 1: it disconnected")
    assert record.read_summary(folder)["status"] == "failed"


def test_the_variables_of_srun_become_those_of_torchrun() -> None:
    """Three nodes with 2, 2 and 1 tasks. Negative controls: one task, torchrun's, a
    batch step."""
    slurm = {
        "SLURM_PROCID": "4",
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": "5",
        "SLURM_NODEID": "2",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
        "SLURM_JOB_ID": "123456",
        "SLURM_STEP_NODELIST": "gpu[007-008,010]",
    }
    found = ranks.from_slurm(slurm)
    assert found == {
        "RANK": "4",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "gpu007",
        "MASTER_PORT": found["MASTER_PORT"],
    }
    steps = [
        ranks.from_slurm({**slurm, "SLURM_STEP_ID": str(step)}) for step in range(8)
    ]
    assert len({step["MASTER_PORT"] for step in steps}) == 8, (
        "steps side by side in one job"
    )
    assert steps[0] == found
    assert all(15000 <= int(step["MASTER_PORT"]) < 25000 for step in steps)
    for nodes, first in (
        ("a,b", "a"),
        ("n[3,5]-ib,x", "n3-ib"),
        ("one.site", "one.site"),
    ):
        assert (
            ranks.from_slurm({**slurm, "SLURM_STEP_NODELIST": nodes})["MASTER_ADDR"]
            == first
        )
    assert ranks.from_slurm({**slurm, "MASTER_PORT": "7"})["MASTER_PORT"] == "7"
    with pytest.raises(InputError, match="SLURM_STEP_NODELIST"):
        ranks.from_slurm({**slurm, "SLURM_NODEID": "3"})
    assert ranks.from_slurm({**slurm, "SLURM_NTASKS": "1"}) == {}
    assert ranks.from_slurm({**slurm, "RANK": "0"}) == {}
    assert (
        ranks.from_slurm({k: v for k, v in slurm.items() if k != "SLURM_STEP_ID"}) == {}
    )
