package random_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/k3infer/k3/conformance/random"
)

// TestDraws is not a test: TestTheSeedOfAFailedTestGivesItsNumbersAgain runs it.
func TestDraws(t *testing.T) {
	if os.Getenv("SEED_DRAWS") == "" {
		t.Skip("for TestTheSeedOfAFailedTestGivesItsNumbersAgain")
	}
	source := random.New
	if os.Getenv("SEED_DRAWS") == "anew" {
		source = random.Anew
	}
	t.Errorf("drew %d", source(t, 1, 2).Uint64())
}

func TestTheSeedOfAFailedTestGivesItsNumbersAgain(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	said := regexp.MustCompile(`(?s)drew (\d+).*again: K3_TEST_SEED=(\d+)`)
	kind := "fixed"
	draw := func(given string) (drawn, again string) {
		cmd := exec.Command(self, "-test.run=^TestDraws$")
		cmd.Env = append(os.Environ(), "SEED_DRAWS="+kind, "K3_TEST_SEED="+given)
		out, err := cmd.CombinedOutput()
		m := said.FindSubmatch(out)
		if err == nil || m == nil {
			t.Fatalf("K3_TEST_SEED=%q: %v, %s", given, err, out)
		}
		return string(m[1]), string(m[2])
	}
	fixed, _ := draw("")
	seen := map[string]bool{fixed: true}
	for _, given := range []string{"random", "random", "7"} {
		drawn, again := draw(given)
		if seen[drawn] {
			t.Errorf("K3_TEST_SEED=%s gives numbers that were there before", given)
		}
		seen[drawn] = true
		if d, a := draw(again); d != drawn || a != again || given == "7" && again != "7" {
			t.Errorf("K3_TEST_SEED=%s gives %s, and as %s it gives %s", given, drawn, again, d)
		}
	}
	if again, _ := draw(""); again != fixed {
		t.Error("without a seed the numbers differ from run to run")
	}
	kind = "anew"
	for _, given := range []string{"", "", "8"} {
		drawn, again := draw(given)
		if seen[drawn] {
			t.Errorf("Anew with K3_TEST_SEED=%q gives numbers that were there before", given)
		}
		seen[drawn] = true
		if d, _ := draw(again); d != drawn {
			t.Errorf("Anew gives %s, and as %s it gives %s", drawn, again, d)
		}
	}
	cmd := exec.Command(self, "-test.run=^TestDraws$")
	cmd.Env = append(os.Environ(), "SEED_DRAWS=1", "K3_TEST_SEED=seven")
	if out, err := cmd.CombinedOutput(); err == nil || said.Match(out) {
		t.Errorf("a seed that is no number: %s", out)
	}
}

// test stands in for the *testing.T of a test.
type test struct{ testing.TB }

func (test) Helper()        {}
func (test) Cleanup(func()) {}

func ExampleNew() {
	var t test // a *testing.T
	same := random.New(t, 1, 2).IntN(1000) == random.New(t, 1, 2).IntN(1000)
	fmt.Println(same)
	// Output: true
}
