"""Hardware data: every figure has a source, is dense, and agrees with independent golden values."""

import re

import pytest

from profiles.catalogue import normalise_gpu
from profiles.errors import InvalidInputError, UnknownNameError
from profiles.store import gpu_names, load_gpu

NAMES = gpu_names()
PRINTED_WITH_SPARSITY_FLOPS_PER_S = {
    "H100-80GB": 1979e12, "H100-PCIe": 1513e12, "H100-NVL": 1671e12, "H200": 1979e12, "A100-80GB": 624e12, "L4": 242e12,
    "A100-40GB-PCIe": 624e12, "A10": 250e12, "A10G": 140e12, "A40": 299.4e12, "L40": 362.1e12, "L40S": 733e12,
    "RTX-A5000": 222.2e12, "RTX-A6000": 309.7e12, "RTX-6000-Ada": 728.5e12, "RTX-3090": 142e12, "RTX-4090": 330.4e12,
    "RTX-5090": 419e12, "B200": 4500e12, "MI300X": 2614.9e12,
}  # fmt: skip
DATACENTRE = [name for name in NAMES if re.match(r"A100|H100|H200|B200|A40|A10$|L40S|L4$|MI300X", name)]


@pytest.fixture(autouse=True)
def _no_user_files(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def test_every_asked_for_gpu_is_there():
    asked = [
        "RTX-2080-Ti", "Titan-RTX", "RTX-3090", "RTX-4090", "RTX-5090", "T4", "L4", "A10", "A40", "A5000", "A6000",
        "L40", "L40S", "RTX-6000-Ada", "V100-16GB", "V100-32GB", "V100-16GB-PCIe", "V100-32GB-PCIe", "A100-40GB",
        "A100-80GB", "A100-40GB-PCIe", "A100-80GB-PCIe", "H100", "H100-PCIe", "H100-NVL", "H200", "B200", "MI250X",
        "MI300X", "cpu",
    ]  # fmt: skip
    assert len({load_gpu(name).name for name in asked}) == len(asked) == 30


@pytest.mark.parametrize("name", NAMES)
def test_has_basis_source_and_date(name):
    gpu = load_gpu(name)
    assert gpu.name == name
    assert min(len(gpu.basis), len(gpu.source)) > 20
    assert re.fullmatch(r"\d{4}(-\d{2}){0,2}", gpu.date)
    assert "\n" not in gpu.basis + gpu.source


@pytest.mark.parametrize("name", PRINTED_WITH_SPARSITY_FLOPS_PER_S)
def test_peaks_are_half_of_what_data_sheets_print_with_sparsity(name):
    gpu = load_gpu(name)
    for peak in (gpu.fp16_flops_per_s, gpu.bf16_flops_per_s):
        assert peak == pytest.approx(PRINTED_WITH_SPARSITY_FLOPS_PER_S[name] / 2, rel=0.015)


@pytest.mark.parametrize("name", NAMES)
def test_no_peak_is_above_the_fastest_dense_one(name):
    gpu = load_gpu(name)
    peaks = [gpu.fp32_flops_per_s, gpu.tf32_flops_per_s, gpu.fp16_flops_per_s, gpu.bf16_flops_per_s]
    assert max(filter(None, peaks)) <= 2.26e15


@pytest.mark.parametrize("name", NAMES)
def test_peaks_are_ordered_and_fp16_equals_bf16(name):
    gpu = load_gpu(name)
    if gpu.fp16_flops_per_s and gpu.bf16_flops_per_s:
        assert gpu.fp16_flops_per_s == gpu.bf16_flops_per_s
    if gpu.tf32_flops_per_s:
        assert gpu.fp32_flops_per_s <= gpu.tf32_flops_per_s
    half = gpu.fp16_flops_per_s or gpu.bf16_flops_per_s
    assert half >= (gpu.tf32_flops_per_s or gpu.fp32_flops_per_s)


@pytest.mark.parametrize("name", DATACENTRE)
def test_tf32_is_half_of_bf16_on_tensor_core_cards(name):
    gpu = load_gpu(name)
    assert gpu.tf32_flops_per_s == pytest.approx(gpu.bf16_flops_per_s / 2, rel=0.03)


@pytest.mark.parametrize("name", NAMES)
def test_precision_follows_compute_capability(name):
    gpu = load_gpu(name)
    if gpu.kind == "cuda":
        assert (gpu.bf16_flops_per_s is not None) == (gpu.tf32_flops_per_s is not None) == (gpu.compute_capability >= 8)
        assert gpu.fp16_flops_per_s is not None
    else:
        assert gpu.compute_capability is None


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cpu"])
def test_memory_is_the_usable_part_of_what_the_name_says(name):
    nominal = {
        "RTX-2080-Ti": 11, "Titan-RTX": 24, "RTX-3090": 24, "RTX-4090": 24, "RTX-5090": 32, "T4": 16, "L4": 24,
        "A10": 24, "A10G": 24, "A40": 48, "RTX-A5000": 24, "RTX-A6000": 48, "L40": 48, "L40S": 48, "RTX-6000-Ada": 48,
        "H100-PCIe": 80, "H100-NVL": 94, "H200": 141, "B200": 180, "MI250X": 64, "MI300X": 192,
    }  # fmt: skip
    said = re.search(r"(\d+)GB", name)
    gib = int(said[1]) if said else nominal[name]
    gpu = load_gpu(name)
    assert 0.90 * gib * 2**30 < gpu.memory_bytes <= gib * 2**30
    assert gpu.memory_bytes % 2**20 == 0


GOLDEN_FLOPS_PER_S = {
    # Independent of the files: the same peaks as users quote them in measured-utilisation threads.
    "H100": ("bf16_flops_per_s", 989.5e12),
    "H200": ("bf16_flops_per_s", 989.5e12),
    "H100-PCIe": ("bf16_flops_per_s", 756.5e12),
    "A100-80GB": ("bf16_flops_per_s", 312e12),
    "A6000": ("bf16_flops_per_s", 154.8e12),
    "3090": ("bf16_flops_per_s", 71e12),
    "4090": ("bf16_flops_per_s", 165.2e12),
    "A10": ("bf16_flops_per_s", 125e12),
    "L40S": ("bf16_flops_per_s", 362e12),
    "B200": ("bf16_flops_per_s", 2250e12),
    "V100-16GB": ("fp16_flops_per_s", 125e12),
    "2080Ti": ("fp16_flops_per_s", 53.8e12),
    "T4": ("fp16_flops_per_s", 65e12),
    "MI300X": ("bf16_flops_per_s", 1307.4e12),
}


@pytest.mark.parametrize("name", GOLDEN_FLOPS_PER_S)
def test_golden_peaks(name):
    field, flops_per_s = GOLDEN_FLOPS_PER_S[name]
    assert getattr(load_gpu(name), field) == pytest.approx(flops_per_s, rel=5e-4)


@pytest.mark.parametrize(
    ("name", "tokens_per_s", "flops_per_token", "mfu"), [("4090", 105_800, 8.5517e8, 0.55), ("H200", 1, 420e12, 0.424)]
)
def test_published_rates_give_the_right_utilisation(name, tokens_per_s, flops_per_token, mfu):
    assert tokens_per_s * flops_per_token / load_gpu(name).bf16_flops_per_s == pytest.approx(mfu, abs=0.003)


def test_a10_peak_is_above_what_it_was_seen_to_do():
    assert load_gpu("A10").bf16_flops_per_s > 49.5e12
    assert "calibrate" in load_gpu("A10").note


def test_sxm_and_pcie_are_different_devices():
    for sxm, pcie in [("H100", "H100-PCIe"), ("A100-80GB", "A100-80GB-PCIe"), ("V100-16GB", "V100-16GB-PCIe")]:
        one, other = load_gpu(sxm), load_gpu(pcie)
        assert one.link.startswith("NVLink")
        assert other.link.startswith("PCIe")
        assert (one.power_w, one.link_bytes_per_s) > (other.power_w, other.link_bytes_per_s)


def test_mi250x_is_one_die_half_of_the_card():
    die = load_gpu("MI250X")
    card = {"fp16": 383.0e12, "fp32": 95.7e12, "memory": 128 * 2**30, "bandwidth": 3276.8e9, "units": 220, "power": 560}
    assert die.fp16_flops_per_s == card["fp16"] / 2
    assert die.fp32_flops_per_s == card["fp32"] / 2
    assert die.memory_bytes == pytest.approx(card["memory"] / 2, rel=1e-3)
    assert die.memory_bytes_per_s == card["bandwidth"] / 2
    assert die.multiprocessors == card["units"] / 2
    assert die.power_w == card["power"] / 2
    assert "PER DIE" in die.note
    assert "PER CARD" in load_gpu("MI300X").note


def test_cpu_is_a_generic_machine_and_says_so():
    cpu = load_gpu("cpu")
    assert cpu.kind == "cpu"
    assert "GENERIC DEFAULTS" in cpu.basis


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB-PCIe"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("GeForce RTX 2080 Ti", "RTX-2080-Ti"),
        ("NVIDIA TITAN RTX", "Titan-RTX"),
        ("NVIDIA H200", "H200"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("Tesla V100-PCIE-32GB", "V100-32GB-PCIe"),
        ("Tesla T4", "T4"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("AMD Instinct MI250X", "MI250X"),
        ("4090", "RTX-4090"),
        ("rtx_4090", "RTX-4090"),
        ("H100-SXM", "H100-80GB"),
        ("CPU", "cpu"),
    ],
)
def test_reported_names_resolve(reported, name):
    assert load_gpu(reported).name == name


def test_no_name_or_alias_means_two_gpus():
    owner = {}
    for name in NAMES:
        for word in {normalise_gpu(text) for text in (name, *load_gpu(name).aliases)}:
            assert owner.setdefault(word, name) == name


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("H20O", "H200"), ("RTX-4080", "RTX-4090"), ("A100", "A100-80GB"), ("V100", "V100-16GB"), ("h300", "H200")],
)
def test_unknown_names_are_an_error_with_the_nearest_matches(wrong, near):
    with pytest.raises(UnknownNameError) as caught:
        load_gpu(wrong)
    assert near in caught.value.nearest
    assert caught.value.exit_code == 2


def test_a_turing_quadro_is_not_taken_for_an_ada_card():
    with pytest.raises(UnknownNameError):
        load_gpu("Quadro RTX 6000")


@pytest.mark.parametrize("name", ["", "  ", "nvidia", "geforce"])
def test_a_name_of_nothing_is_unknown(name):
    with pytest.raises(UnknownNameError):
        load_gpu(name)


def _own_gpu(tmp_path, name, **changes):
    values = {
        "name": name, "compute_capability": 8.0, "fp32_flops_per_s": 1e13, "tf32_flops_per_s": "none",
        "fp16_flops_per_s": 1e14, "bf16_flops_per_s": 1e14, "memory_bytes": 2**34, "memory_bytes_per_s": 1e12,
        "power_w": 100, "multiprocessors": 42, "link": "PCIe", "link_bytes_per_s": 1e10, "host_bytes_per_s": 1e10,
        "basis": "mine", "source": "bench", "date": "2026-01-01",
    }  # fmt: skip
    lines = [f"{key} = {value!r}" for key, value in (values | changes).items() if value is not None]
    path = tmp_path / "gpus" / f"{name}.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines))
    return path


def test_own_files_add_and_override(tmp_path):
    _own_gpu(tmp_path, "h200", memory_bytes=5)
    _own_gpu(tmp_path, "MIG-3g.40gb", aliases=["slice"])
    assert load_gpu("NVIDIA H200").memory_bytes == 5
    assert load_gpu("slice").multiprocessors == 42
    assert len(gpu_names()) == len(NAMES) + 1


def test_all_problems_of_an_own_file_at_once(tmp_path):
    path = _own_gpu(tmp_path, "Mine", power_w=None, multiprocessors="many", colour="green")
    with pytest.raises(InvalidInputError) as caught:
        load_gpu("Mine")
    assert str(path) in caught.value.subject
    text = str(caught.value)
    assert "power_w: is required" in text
    assert "multiprocessors: input should be a valid integer, got 'many'" in text
    assert "colour: not a known field; known: name" in text
    assert len(caught.value.problems) == 3


def test_impossible_numbers_and_a_wrong_name_are_refused(tmp_path):
    _own_gpu(tmp_path, "Mine", memory_bytes=0, power_w=-3.0)
    (tmp_path / "gpus" / "Mine.toml").rename(tmp_path / "gpus" / "Yours.toml")
    with pytest.raises(InvalidInputError) as caught:
        load_gpu("Yours")
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["name", "memory_bytes", "power_w"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'name = "Bad"\nfp32 = ', "not valid TOML"),
        ('name = "Bäd"'.encode("utf-16"), "not UTF-8 text"),
        (b"power_w = inf", "finite"),
        (b"", "is required but missing"),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path, content, told):
    path = tmp_path / "gpus" / "Bad.toml"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=told) as caught:
        load_gpu("Bad")
    assert str(path) in str(caught.value)
