from fsvi import machine


def test_free_memory_is_the_least_of_the_machine_and_of_its_groups(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_OWN_GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "groups")
    assert machine.free_memory() is None
    (tmp_path / "meminfo").write_text("MemTotal:       9 kB\nMemAvailable:       5 kB\n")
    assert machine.free_memory() == 5120
    (tmp_path / "cgroup").write_text("0::/job/step\n")
    files = {"memory.max": "900\n", "memory.current": "300\n", "memory.stat": "anon 9\ninactive_file 3\n"}
    (tmp_path / "groups" / "job" / "step").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "groups" / "job" / name).write_text(text)
    assert machine.free_memory() == 603
    (tmp_path / "groups" / "job" / "memory.max").write_text("max\n")
    assert machine.free_memory() == 5120
