"""Machine names, to and fro."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InvalidInputError, UnknownNameError
from profiles.machines import NETWORKS, canonical, parse_machine
from profiles.store import gpu_names


@pytest.mark.parametrize(
    ("text", "nodes", "gpus", "gpu", "name"),
    [
        ("1xH200", 1, 1, "H200", "1xH200"),
        ("H200", 1, 1, "H200", "1xH200"),
        (" 4 x A100-80GB ", 1, 4, "A100-80GB", "4xA100-80GB"),
        ("4×a100_80gb", 1, 4, "A100-80GB", "4xA100-80GB"),
        ("4090", 1, 1, "RTX-4090", "1xRTX-4090"),
        ("8x4090", 1, 8, "RTX-4090", "8xRTX-4090"),
        ("2xMI300X", 1, 2, "MI300X", "2xMI300X"),
        ("1x8xH100", 1, 8, "H100-80GB", "8xH100-80GB"),
        ("cpu", 1, 1, "cpu", "cpu"),
        ("1xCPU", 1, 1, "cpu", "cpu"),
        ("2x8xH100@ib400", 2, 8, "H100-80GB", "2x8xH100-80GB@ib400"),
    ],
)
def test_what_a_name_means(text, nodes, gpus, gpu, name):
    machine = parse_machine(text)
    assert (machine.nodes, machine.gpus_per_node, machine.gpu.name, machine.name) == (nodes, gpus, gpu, name)


@pytest.mark.parametrize(
    ("network", "bytes_per_s", "spelt"),
    [
        ("8xib200", 200e9, "8xib200"),
        ("8xib400", 400e9, "8xib400"),
        ("ib400", 50e9, "ib400"),
        ("1xIB400", 50e9, "ib400"),
        ("eth10", 1.25e9, "eth10"),
        ("4×roce100", 50e9, "4xroce100"),
        ("eth2.50", 0.3125e9, "eth2.5"),
    ],
)
def test_a_nodes_network_is_ports_times_gbit(network, bytes_per_s, spelt):
    machine = parse_machine(f"2x8xA100-80GB@{network}")
    assert machine.network_bytes_per_s_per_node == bytes_per_s
    assert machine.network == spelt


def test_one_node_needs_no_network():
    assert parse_machine("8xH100").network_bytes_per_s_per_node is None


@given(
    nodes=st.integers(1, 999_999),
    gpus=st.integers(1, 999_999),
    gpu=st.sampled_from(gpu_names()),
    ports=st.integers(1, 64),
    kind=st.sampled_from(NETWORKS),
    mbit=st.integers(1, 999_999_999),
)
def test_canonical_text_reads_back_as_the_same_machine(nodes, gpus, gpu, ports, kind, mbit):
    machine = parse_machine(f"{nodes}x{gpus}x{gpu}@{ports}x{kind}{mbit // 1000}.{mbit % 1000:03}")
    assert parse_machine(canonical(machine)) == machine
    assert canonical(machine) == machine.name
    single = parse_machine(f"{gpus}x{gpu}")
    assert parse_machine(canonical(single)) == single


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2x8xH100", "2 nodes need a network: add @ and write PORTSxNETWORKGBIT"),
        ("4xA100-40GB+4xV100-16GB", "mixes GPU types"),
        ("A100-40GB,V100-16GB", "mixes GPU types"),
        ("MIG-3g.40gb", "MIG slice"),
        ("2xNVIDIA A100-SXM4-40GB MIG 1g.5gb", "only one can train"),
        ("0xH200", "whole number from 1 to 999999, got 0"),
        ("-4xH200", "whole number from 1 to 999999, got -4"),
        ("1.5xH200", "whole number from 1 to 999999, got 1.5"),
        (f"{'9' * 5000}xH200", "whole number"),
        ("2x2x2xH200", "at most two"),
        ("", "names no GPU"),
        ("4x", "names no GPU"),
        ("4x ", "names no GPU"),
        ("@ib400", "names no GPU"),
        ("2x8xH100@", "'' is not a network"),
        ("2x8xH100@token10", "one of ib, roce, eth, efa"),
        ("2x8xH100@ib0", "not a network"),
        ("2x8xH100@0xib400", "whole number"),
        ("2x8xH100@ib-400", "not a network"),
        ("2x8xH100@ib400@ib400", "not a network"),
    ],
)
def test_what_is_refused(text, told):
    with pytest.raises(InvalidInputError) as caught:
        parse_machine(text)
    assert told in str(caught.value)


def test_all_problems_at_once():
    with pytest.raises(InvalidInputError) as caught:
        parse_machine("0x-1xH20O@foo9")
    assert len(caught.value.problems) == 4
    assert "did you mean H200" in caught.value.problems[-1]


def test_an_unknown_gpu_alone_keeps_its_nearest_matches():
    with pytest.raises(UnknownNameError) as caught:
        parse_machine("4xH20O")
    assert "H200" in caught.value.nearest


@given(st.text(max_size=30))
def test_any_text_is_a_machine_or_one_clear_error(text):
    machine = None
    with contextlib.suppress(InvalidInputError):
        machine = parse_machine(text)
    assert machine is None or parse_machine(machine.name) == machine
