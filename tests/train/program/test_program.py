"""Exit codes and messages of the built program: test_program.py PROGRAM."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""
COMMANDS = ["train", "eval", "estimate", "plan", "fits", "generate", "qualify", "techniques", "import", "export"]
WITH_CONFIG = COMMANDS[:3]


class Program(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_program(self, *arguments):
        return subprocess.run([PROGRAM, *arguments], cwd=self.folder.name, capture_output=True, text=True, timeout=300)

    def expect_mistake(self, arguments, expected):
        """Exit code 2, one line on stderr, nothing on stdout, no file left behind."""
        result = self.run_program(*arguments)
        self.assertEqual(result.returncode, 2, result)
        self.assertEqual(result.stdout, "", result)
        self.assertTrue(result.stderr.startswith("moelab: "), result)
        self.assertEqual(result.stderr.count("\n"), 1, result)
        self.assertIn(expected, result.stderr)
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_without_arguments_help_and_2(self):
        result = self.run_program()
        self.assertEqual(result.returncode, 2)
        for command in COMMANDS:
            self.assertIn(command, result.stderr)

    def test_waiting_threads_spin_for_a_bounded_time(self):
        """libgomp says what it took; what the user has set is left alone."""
        def spins(**variables):
            environment = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
            result = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True,
                                    env=environment | {"OMP_DISPLAY_ENV": "verbose"} | variables)
            return re.search(r"GOMP_SPINCOUNT = '(\w+)'", result.stderr)[1]
        self.assertEqual(spins(), "6500")
        self.assertEqual(spins(GOMP_SPINCOUNT="7"), "7")
        self.assertEqual(spins(OMP_WAIT_POLICY="passive"), "0")
        self.assertNotIn(spins(OMP_WAIT_POLICY="active"), ("0", "6500"))

    def help(self, *arguments):
        result = self.run_program(*arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def test_help(self):
        """A command's own options in one screen, one group of settings, or everything."""
        for command in COMMANDS:
            self.assertIn(command, self.help("--help"))
            own = self.help(command, "--help")
            self.assertLessEqual(own.count("\n"), 40, own)
            self.assertLessEqual(max(map(len, own.splitlines())), 140, own)
            self.assertIn("Example: moelab " + command, own)
            self.assertNotIn("train.sequence=", own)
            self.assertIn(own, self.help(command, "--help", "all"))
            self.assertEqual(own, self.help("help", command))
        self.assertEqual(self.help("help"), self.help("--help"))
        own = self.help("train", "-h")
        for text in ["--config", "--print-config", "gpu-8gb", "moe-nano", "model, attention, precision"]:
            self.assertIn(text, own)
        self.assertNotIn("-h", re.sub("-h,--help", "", self.help("train", "--help", "all")).split())

    def test_help_of_settings(self):
        model = self.help("train", "--help", "model")
        self.assertEqual(self.help("train", "model.layers=3", "--help=model"), model)
        for text in ["model.d_model=384", "one of capacity, dropless, onehot", "qwen3-30b-a3b "]:
            self.assertIn(text, model)
        self.assertNotIn("attention.kernel=", model)
        for text in ["model.d_model=384", "run.threads=0", "qwen3-30b-a3b ", "gpu-8gb "]:
            self.assertIn(text, self.help("train", "--help", "all"))
        # commands list what they read and no more
        self.assertIn("eval.batches=", self.help("eval", "--help", "all"))
        for command, unread in (("eval", "train.steps="), ("estimate", "data.path="), ("generate", "optim.lr=")):
            self.assertNotIn(unread, self.help(command, "--help", "all"))
        self.expect_mistake(["train", "--help", "modle"], "did you mean model?")
        self.expect_mistake(["eval", "--help", "optim"], "--help optim: no group of settings that this command reads")
        self.expect_mistake(["import", "--help", "model"], "this command takes no settings")

    def test_techniques(self):
        text = self.run_program("techniques")
        self.assertEqual((text.returncode, text.stderr), (0, ""))
        result = self.run_program("techniques", "--json")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        rows = json.loads(result.stdout)["techniques"]
        self.assertEqual(rows[0]["name"], "baseline")
        for row in rows:
            self.assertIn("\n" + row["name"] + ": " + row["title"] + "\n", text.stdout)
            self.assertTrue(row["settings"] and row["trades"] and row["claims"], row)
            for claim in row["claims"]:
                self.assertIn(claim["text"], text.stdout)
        self.expect_mistake(["techniques", "--jsn"], "unknown option --jsn; did you mean --json?")
        self.expect_mistake(["techniques", "train.steps=5"], "train.steps")

    def test_version(self):
        for arguments in [["--version"], ["train", "--version"]]:
            result = self.run_program(*arguments)
            self.assertEqual(result.returncode, 0)
            self.assertRegex(result.stdout, r"^moelab \d+\.\d+\.\d+ \(commit ([0-9a-f]{12}|unknown)(, modified)?\)\n$")

    def test_mistakes_on_the_command_line(self):
        self.expect_mistake(["trian"], "unknown command trian; did you mean train?")
        self.expect_mistake(["--confg", "moe-nano"], "unknown option --confg")
        self.expect_mistake(["train", "--confg", "moe-nano"], "unknown option --confg; did you mean --config?")
        self.expect_mistake(["train", "--confg=moe-nano"], "unknown option --confg; did you mean --config?")
        self.expect_mistake(["eval", "--resume", "latest"], "unknown option --resume")
        self.expect_mistake(["train", "--train.steps=5"], "--train.steps: settings take no dashes; write train.steps=5")
        self.expect_mistake(["train", "--lr", "1e-3"], "--lr: settings take no dashes; write optim.lr=VALUE")
        self.expect_mistake(["train", "--config", "none.yaml"], "--config none.yaml: no such file")
        self.expect_mistake(["train", "--config", "here/none"], "--config here/none: no such file")
        self.expect_mistake(["generate"], "--from is required; see moelab generate --help")
        self.expect_mistake(["train", "--config"], "--config")
        self.expect_mistake(["train", "--config", "moe-nano", "--config", "b"], "--config b: neither a model")
        self.expect_mistake(["train", "eval"], "eval: expected key=value")
        self.expect_mistake(["train", "moe-nano"], "a name goes after --config")
        self.expect_mistake(["train", "--config", "moe-nan"], "did you mean moe-nano?")
        self.expect_mistake(["train", "--preset", "gpu-9gb"], "did you mean gpu-8gb?")
        self.expect_mistake(["train", "--device", "gpu"], "expected one of auto, cpu, cuda, got gpu")
        self.expect_mistake(["estimate", "--scale", "2"], "run.scale: expected a number")
        self.expect_mistake(["estimate", "--ranks", "0"], "--ranks")
        self.expect_mistake(["plan", "--memory", "8GB", "--device", "cpu", "run.device=cuda"],
                            "--device cpu and run.device=cuda are different devices")

    def test_of_two_values_the_later_wins(self):
        def printed(*arguments):
            result = self.run_program("train", *arguments, "--print-config")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            return result.stdout

        self.assertEqual(printed("train.steps=5", "train.seed=2", "train.steps=7"),
                         printed("train.seed=2", "train.steps=7"))
        self.assertEqual(printed("--config", "moe-nano", "--preset", "gpu-8gb", "--config=moe-pico", "--preset=gpu-24gb"),
                         printed("--config", "moe-pico", "--preset", "gpu-24gb"))
        # an option that is short for a setting is one more value of it
        self.assertIn("  device: cpu\n", printed("--device", "cuda", "run.device=cpu"))
        self.assertIn("  device: cuda\n", printed("run.device=cpu", "--device", "cuda"))
        self.assertIn("  device: cuda\n", printed("--device=cpu", "train.steps=5", "--device", "cuda"))
        self.assertEqual(printed("run.scale=1/4", "--scale", "1/64"), printed("--scale=1/64"))
        self.assertEqual(printed("--scale", "1/64", "train.steps=5", "run.scale=1/4"),
                         printed("run.scale=0.25", "train.steps=5"))
        plan = self.run_program("plan", "--memory", "1MB", "--model", "moe-pico", "memory.limit=1GiB")
        self.assertIn(" on this CPU with 1.0 GiB; ", plan.stdout)
        for command in WITH_CONFIG:
            self.assertIn("the later wins", " ".join(self.run_program(command, "--help").stdout.split()))

    def test_a_key_twice_in_a_file_is_a_mistake(self):
        path = os.path.join(self.folder.name, "twice.yaml")
        with open(path, "w") as file:
            file.write("train:\n  steps: 5\n  steps: 5\n")
        result = self.run_program("train", "--config", "twice.yaml", "train.steps=5")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, "moelab: twice.yaml:3: train.steps: given twice, first on line 2\n")

    def test_estimate_fits_by_what_a_gpu_reserves(self):
        model = ["estimate", "--config", "moe-pico", "--device", "cuda"]
        sizes = json.loads(self.run_program(*model, "--json").stdout)
        # the tensors fit to the byte, segments of 2 and 20 MiB around them do not, whatever is given back
        for limit, code, verdict in ((sizes["peak_bytes"], 3, "does not fit: needs "),
                                     (sizes["reserved_bytes"], 0, "fits: needs ")):
            result = self.run_program(*model, f"memory.limit={limit}")
            self.assertEqual(result.returncode, code)
            self.assertIn(verdict, result.stdout)

    def test_estimate_of_ranks(self):
        result = self.run_program("estimate", "--json", "--config", "moe-pico", "--ranks", "4")
        found = json.loads(result.stdout)
        stages = found["ranks"]["by_stage"]
        self.assertEqual((found["ranks"]["count"], [row["zero"] for row in stages]), (4, [0, 1, 2, 3]))
        # AdamW's 8 bytes a parameter: whole, then a quarter, but for rows that do not divide by four
        self.assertEqual(stages[0]["optimizer"], found["state_bytes"]["optimizer"])
        for row in stages[1:]:
            self.assertAlmostEqual(row["optimizer"], stages[0]["optimizer"] / 4, delta=stages[0]["optimizer"] / 200)
        peaks = [row["peak_bytes"] for row in stages]
        self.assertEqual(peaks, sorted(peaks, reverse=True))
        self.assertNotIn("ranks", json.loads(self.run_program("estimate", "--json", "--config", "moe-pico").stdout))
        self.assertIn("parallel.zero=3", self.run_program("estimate", "--config", "moe-pico", "--ranks", "4").stdout)

    def test_mistakes_in_settings(self):
        for command in WITH_CONFIG:
            self.expect_mistake([command, "train.stesp=5"], "did you mean train.steps?")
            self.expect_mistake([command, "train.steps=1.5"], "expected an integer")
            self.expect_mistake([command, "model.heads=5"], "model.heads=5 does not divide model.d_model=384")

    def test_print_config_is_byte_equal_when_read_again(self):
        result = self.run_program("train", "--config", "moe-nano", "--preset", "gpu-12gb", "--scale", "1/64",
                                  "optim.lr=1e-7", "optim.min_lr=1e-8", "data.path=a: b", "--print-config")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(os.listdir(self.folder.name), [])
        path = os.path.join(self.folder.name, "config.yaml")
        with open(path, "w") as file:
            file.write(result.stdout)
        for command in WITH_CONFIG:
            again = self.run_program(command, "--print-config", "--config", path)
            self.assertEqual(again.stdout, result.stdout)

    def test_mistake_in_a_file_has_its_line(self):
        path = os.path.join(self.folder.name, "bad.yaml")
        with open(path, "w") as file:
            file.write("train:\n  steps: 5\n  stesp: 5\n")
        result = self.run_program("train", "--config", "bad.yaml")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, "moelab: bad.yaml:3: train.stesp: unknown setting; did you mean train.steps?\n")


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
