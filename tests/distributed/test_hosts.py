"""Two machines, which network namespaces stand for, and a rank that dies and is started again by torchrun."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from typing import NamedTuple

import pytest
from test_launchers import ALONE, SCRIPTS, launch

pytestmark = pytest.mark.nightly


class Host(NamedTuple):
    name: str
    card: str
    command: list[str]  # that runs what follows it there

    def set_link(self, state):
        subprocess.run(["ip", "-n", self.name, "link", "set", self.card, state], check=True)


@pytest.fixture
def hosts():
    """Two hosts, which see each other by a network card only."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("network namespaces need root, ip (iproute2) and unshare (util-linux)")
    names = [f"anymps-{os.getpid()}-{i}" for i in range(2)]
    cards = [f"anymps{i}" for i in range(2)]
    commands = [f"netns add {name}" for name in names]
    commands.append(f"link add {cards[0]} netns {names[0]} type veth peer name {cards[1]} netns {names[1]}")
    for i, (name, card) in enumerate(zip(names, cards, strict=True)):
        commands += [f"-n {name} addr add 10.213.7.{i + 1}/24 dev {card}"]
        commands += [f"-n {name} link set {device} up" for device in (card, "lo")]
    try:
        for command in commands:
            done = subprocess.run(["ip", *command.split()], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"this machine has no network namespaces: ip {command}: {done.stderr.strip()}")
        # A host of its own has its own processes, too: what shares memory must not find the other's.
        alone = ["unshare", "--pid", "--fork", "--mount-proc"]
        on = ["ip", "netns", "exec"]
        yield [Host(name, card, [*on, name, *alone]) for name, card in zip(names, cards, strict=True)]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def started(host, *command, **variables):
    inherited = {name: value for name, value in os.environ.items() if name not in ALONE}
    variables = {**inherited, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": host.card, **variables}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*host.command, *map(str, command)], env=variables, **pipes)


def ended(processes, timeout=240):
    try:
        return [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()


def test_two_hosts(mps, hosts):
    start = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    start += ["--master-addr", "10.213.7.1", "--master-port", "29713"]
    processes = [started(host, *start, "--node-rank", i, SCRIPTS / "two_hosts.py") for i, host in enumerate(hosts)]
    outputs = ended(processes)
    lines = [line for output in outputs for line in output.splitlines() if line.startswith('{"rank"')]
    assert len(lines) == 2, "\n".join(outputs)
    for line in lines:
        result = json.loads(line)
        assert result["sum"] == [3.0] and result["gathered"] == [0.0, 1.0] and result["gradient"] == 1.5
        assert result["peers"] == 0  # no memory that is not there for the other


LINKS = {  # seconds of no link and of a link, how often
    "down for 5 s": (5, 1, 1),
    "flapping": (0.1, 0.1, 20),
}


def trained_over(hosts, folder, timeout, what_happens):
    """What both ranks report; what_happens(hosts) is called while they train."""
    command = (sys.executable, SCRIPTS / "unsteady_link.py", folder, timeout)
    store = {"MASTER_ADDR": "10.213.7.1", "MASTER_PORT": "29714", "WORLD_SIZE": "2"}
    processes = [started(host, *command, **store, RANK=str(i)) for i, host in enumerate(hosts)]
    deadline = time.monotonic() + 200
    while len(os.listdir(folder)) < 2 and all(p.poll() is None for p in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    what_happens(hosts)
    (folder / "stop").touch()
    outputs = ended(processes, timeout + 60)
    lines = [line for output in outputs for line in output.splitlines() if line.startswith('{"rank"')]
    assert len(lines) == 2, "\n".join(outputs)
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("link", LINKS)
def test_a_link_that_comes_back(mps, hosts, tmp_path, link):
    """TCP sends again what was lost: steps take longer, and none is wrong."""
    down, up, times = LINKS[link]

    def what_happens(hosts):
        for _ in range(times):
            hosts[1].set_link("down")
            time.sleep(down)
            hosts[1].set_link("up")
            time.sleep(up)

    results = trained_over(hosts, tmp_path, 60, what_happens)
    for result in results:
        assert result["error"] == "" and result["wrong"] == 0 and result["steps"] > 1, results
        assert result["longest"] > down, results


def test_a_link_that_stays_away(mps, hosts, tmp_path):
    results = trained_over(hosts, tmp_path, 6, lambda hosts: hosts[1].set_link("down"))
    for result in results:
        assert result["error"].startswith("DistBackendError: ") and "on mps" in result["error"], results
        assert result["wrong"] == 0 and result["seconds"] < 6 + 30, results


def test_torchrun_goes_on_after_a_rank_was_killed(mps, tmp_path, monkeypatch):
    # Else PyTorch's agent keeps its store, in which gloo finds addresses of processes that have ended.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    script = SCRIPTS / "elastic.py"
    restarted, output = launch(*start, "--max-restarts", 1, script, tmp_path)
    assert {r: (result["start"], result["first"]) for r, result in restarted.items()} == {0: (1, 3), 1: (1, 3)}, output
    expected, _ = launch("-c", ALONE_ON_BOTH.format(script=str(script)))
    assert restarted[0]["weight"] == restarted[1]["weight"] == pytest.approx(expected[0]["weight"], rel=1e-6)


# Both ranks' batches in one process.
ALONE_ON_BOTH = """
import sys, torch
sys.path.insert(0, {script!r}.rsplit("/", 1)[0])
from report import report
torch.manual_seed(0)
model = torch.nn.Linear(1, 1).to("mps")
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for step in range(6):
    loss = sum(model(torch.full((1, 1), 1.0 + r + step, device="mps")).pow(2).mean() for r in range(2)) / 2
    optimizer.zero_grad(); loss.backward(); optimizer.step()
report(0, weight=model.weight.item())
"""
