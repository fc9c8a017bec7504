package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/k3infer/k3/presets"
)

// packages are those whose errors begin with their name, which tells a user nothing: first those that pass on errors of others
// as they are. A test compares the list with the code.
var (
	outerPackages = []string{"core", "estimate", "graph", "tape", "experts", "memory", "kernel", "bench", "conformance"}
	innerPackages = []string{"chat", "checkpoint", "checksum", "disk", "fabricate", "hub", "pack", "replay", "sample", "session", "speculate", "stats",
		"tokenizer", "verify"}
)

// PackageNames are the names of packages that no message to a user begins with.
func PackageNames() []string { return slices.Concat(outerPackages, innerPackages) }

// prefixes are names of packages at the beginning of what they say, with the function where that stands alone. What a package at
// the end of the row says may begin with the name of a file, which may be that of a package too.
var prefixes = func() *regexp.Regexp {
	function := `(?:(?:encode|generate|keep|load|lock|next|open|pass|plan|sweep): )?`
	return regexp.MustCompile(`(^|: |; )(?:(?:` + strings.Join(outerPackages, "|") + `): ` + function + `)*(?:(?:` +
		strings.Join(innerPackages, "|") + `): ` + function + `)?`)
}()

// joint stands between errors that were joined, which would be on lines of their own, until they are on one.
const joint = "\x00"

// partial are the names of files under way, which become others when they are complete.
var partial = regexp.MustCompile(`\.\d{4,}\.partial$`)

// OneLine is what a user reads of an error: one line in plain words, without what only the program's authors know, as names of
// packages, of functions of the system, of types and of files under way.
func OneLine(err error) string {
	text := err.Error()
	everyError(err, func(e error) {
		if was := e.Error(); was != "" {
			before, _, _ := strings.Cut(text, was)
			text = strings.ReplaceAll(text, was, plainWords(e, before))
		}
	})
	var lines []string
	for _, line := range strings.Split(text, joint) {
		if !errors.Is(err, presets.ErrConfig) { // its sections may have names of packages
			line = prefixes.ReplaceAllString(line, "$1")
		}
		said := slices.Compact(strings.Split(line, ": "))
		if said[len(said)-1] == Interrupted {
			said = said[len(said)-1:]
		}
		lines = append(lines, strings.Join(said, ": "))
	}
	// Names of files may have line breaks, too.
	return strings.NewReplacer("\r", `\r`, "\n", `\n`).Replace(strings.Join(slices.Compact(lines), "; "))
}

// everyError calls do for err and the errors in it, from the outside.
func everyError(err error, do func(error)) {
	do(err)
	switch x := err.(type) {
	case interface{ Unwrap() error }:
		if inner := x.Unwrap(); inner != nil {
			everyError(inner, do)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range x.Unwrap() {
			everyError(inner, do)
		}
	}
}

// plainWords is what an error of Go's library says, in a text in which before stands in front of it.
func plainWords(err error, before string) string {
	switch e := err.(type) {
	case *fs.PathError:
		cause := plainWords(e.Err, "")
		switch {
		case partial.MatchString(e.Path), strings.Contains(before, e.Path):
			return cause
		case slices.Contains([]string{"open", "read", "write", "mkdir", "remove", "chmod"}, e.Op):
			return fmt.Sprintf("%s %s: %s", e.Op, e.Path, cause)
		}
		return fmt.Sprintf("%s: %s", e.Path, cause)
	case *os.LinkError:
		return plainWords(e.Err, "")
	case *os.SyscallError:
		return plainWords(e.Err, "")
	case *strconv.NumError:
		if errors.Is(e, strconv.ErrRange) {
			return fmt.Sprintf("%q is out of range", e.Num)
		}
		return fmt.Sprintf("%q is not a number", e.Num)
	case *json.UnmarshalTypeError:
		text := fmt.Sprintf("%s where %s is needed", jsonKind(e.Value), goKind(e.Type))
		if e.Field != "" {
			text = e.Field + ": " + text
		}
		return text
	}
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		var texts []string
		for _, e := range several.Unwrap() {
			texts = append(texts, e.Error())
		}
		if strings.Join(texts, "\n") == err.Error() {
			return strings.Join(texts, joint)
		}
	}
	switch err {
	case context.Canceled:
		return Interrupted
	case context.DeadlineExceeded:
		return "it took too long"
	case io.ErrUnexpectedEOF:
		return "it ends too early"
	}
	return err.Error()
}

// jsonKind is what encoding/json calls a value, with its article.
func jsonKind(value string) string {
	kind, rest, _ := strings.Cut(value, " ") // "number 1.5"
	switch kind {
	case "bool":
		return "true or false"
	case "array":
		return "a list"
	case "object":
		return "an object"
	}
	return strings.TrimSpace("a " + kind + " " + rest)
}

// goKind is what JSON calls the values that fit a type.
func goKind(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a whole number"
}
