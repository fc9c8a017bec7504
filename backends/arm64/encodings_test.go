package arm64_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// fields are those of an instruction in the tables of the architecture manual (C4.1, "Advanced SIMD"). All instructions are
// on vectors of 128 bits; fcvtl says by q which half it reads.
type fields struct{ q, u, a, opcode uint32 }

// threeSame is 0 q u 01110 a0 1 Rm opcode 1 Rn Rd.
var threeSame = map[string]fields{
	"fadd":  {1, 0, 0, 0b11010},
	"fsub":  {1, 0, 1, 0b11010},
	"faddp": {1, 1, 0, 0b11010},
	"fmul":  {1, 1, 0, 0b11011},
	"fdiv":  {1, 1, 0, 0b11111},
	"fmax":  {1, 0, 0, 0b11110},
	"fmin":  {1, 0, 1, 0b11110},
	"fcmeq": {1, 0, 0, 0b11100},
	"fcmgt": {1, 1, 1, 0b11100},
}

// twoRegister is 0 q u 01110 a0 10000 opcode 10 Rn Rd.
var twoRegister = map[string]fields{
	"fabs":   {1, 0, 1, 0b01111},
	"frintn": {1, 0, 0, 0b11000},
	"fcvtzs": {1, 0, 1, 0b11011},
	"fcvtl":  {0, 0, 0, 0b10111},
	"fcvtl2": {1, 0, 0, 0b10111},
}

// encode assembles an instruction as a comment spells it.
func encode(text string) (uint32, error) {
	op, operands, _ := strings.Cut(text, " ")
	var number [3]uint32
	var arrangement [3]string
	list := strings.Split(operands, ", ")
	for i, o := range list {
		name, lanes, _ := strings.Cut(o, ".")
		n, err := strconv.ParseUint(strings.TrimLeft(name, "v#"), 10, 5)
		if err != nil || i > 2 {
			return 0, fmt.Errorf("operand %q", o)
		}
		number[i], arrangement[i] = uint32(n), lanes
	}
	from := "4s"
	var word uint32
	if f, ok := threeSame[op]; ok && len(list) == 3 && arrangement[2] == "4s" {
		word = f.q<<30 | f.u<<29 | 0b01110<<24 | f.a<<23 | 1<<21 | number[2]<<16 | f.opcode<<11 | 1<<10
	} else if f, ok := twoRegister[op]; ok && len(list) == 2 {
		word = f.q<<30 | f.u<<29 | 0b01110<<24 | f.a<<23 | 0b10000<<17 | f.opcode<<12 | 0b10<<10
		if op == "fcvtl" {
			from = "4h"
		} else if op == "fcvtl2" {
			from = "8h"
		}
	} else if op == "sshr" && len(list) == 3 && strings.HasPrefix(list[2], "#") {
		// 0 q 0 011110 immh immb 00000 1 Rn Rd, where immh:immb is 64 less the shift for lanes of 32 bits.
		word = 1<<30 | 0b011110<<23 | (64-number[2])<<16 | 1<<10
	} else {
		return 0, fmt.Errorf("unknown instruction")
	}
	if arrangement[0] != "4s" || arrangement[1] != from {
		return 0, fmt.Errorf("unknown arrangement")
	}
	return word | number[1]<<5 | number[0], nil
}

var wordLine = regexp.MustCompile(`(?m)^\s*WORD\s+(.*)$`)

// words returns the WORD lines of the assembly: what is encoded, by comment.
func words(t *testing.T) map[string]uint32 {
	t.Helper()
	files, err := filepath.Glob("*_arm64.s")
	if err != nil || len(files) == 0 {
		t.Fatalf("no assembly: %v", err)
	}
	all := map[string]uint32{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range wordLine.FindAllStringSubmatch(string(text), -1) {
			hex, comment, found := strings.Cut(m[1], " // ")
			word, err := strconv.ParseUint(strings.TrimPrefix(hex, "$0x"), 16, 32)
			if err != nil || !found {
				t.Fatalf("%s: %q is not a number and its meaning", file, m[0])
			}
			if old, ok := all[comment]; ok && old != uint32(word) {
				t.Errorf("%s: %s is both %08x and %08x", file, comment, old, word)
			}
			all[comment] = uint32(word)
		}
	}
	return all
}

func TestEveryWordIsTheInstructionItsCommentNames(t *testing.T) {
	seen := map[string]bool{}
	for comment, word := range words(t) {
		want, err := encode(comment)
		if err != nil {
			t.Errorf("%s: %v", comment, err)
		} else if word != want {
			t.Errorf("%s is %08x, not %08x", comment, want, word)
		}
		op, _, _ := strings.Cut(comment, " ")
		seen[op] = true
	}
	if want := len(threeSame) + len(twoRegister) + 1; len(seen) != want {
		t.Errorf("the assembly has %d of the %d instructions: remove the others", len(seen), want)
	}
}

// The same against an assembler, where one is at hand.
func TestEveryWordIsWhatAnAssemblerMakesOfItsComment(t *testing.T) {
	path, err := exec.LookPath("llvm-mc")
	if err != nil {
		t.Skip("no llvm-mc here")
	}
	all := words(t)
	var order []string
	for comment := range all {
		order = append(order, comment)
	}
	cmd := exec.Command(path, "-triple=aarch64", "-show-encoding")
	cmd.Stdin = strings.NewReader(strings.Join(order, "\n"))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	got := regexp.MustCompile(`encoding: \[0x(..),0x(..),0x(..),0x(..)\]`).FindAllSubmatch(out, -1)
	if len(got) != len(order) {
		t.Fatalf("%d instructions of %d", len(got), len(order))
	}
	for i, m := range got {
		if hex := string(bytes.Join([][]byte{m[4], m[3], m[2], m[1]}, nil)); hex != fmt.Sprintf("%08x", all[order[i]]) {
			t.Errorf("%s is %s, not %08x", order[i], hex, all[order[i]])
		}
	}
}
