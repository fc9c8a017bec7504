package ui

import (
	"errors"
	"fmt"
)

// Exit codes.
const (
	ExitFailed      = 1
	ExitUsage       = 2
	ExitInput       = 3
	ExitNoFit       = 4
	ExitInterrupted = 130
	ExitPipe        = 141
)

// coded is an error with its exit code.
type coded struct {
	code int
	error
}

func (c coded) Unwrap() error { return c.error }

// WithCode gives an error the exit code that the program ends with.
func WithCode(code int, err error) error { return coded{code, err} }

// Code is the exit code that an error was given; ok is false if it was given none.
func Code(err error) (code int, ok bool) {
	var c coded
	ok = errors.As(err, &c)
	return c.code, ok
}

// Usagef is an error in how the program was called.
func Usagef(format string, args ...any) error { return coded{ExitUsage, fmt.Errorf(format, args...)} }

// Inputf is an error in an input file.
func Inputf(format string, args ...any) error { return coded{ExitInput, fmt.Errorf(format, args...)} }

// hinted is an error with a second line: what to do about it.
type hinted struct {
	error
	hint string
}

func (h *hinted) Unwrap() error { return h.error }

// WithHint gives an error a second line: what to do about it.
func WithHint(err error, hint string) error { return &hinted{err, hint} }

// Hint is the second line of an error, or "".
func Hint(err error) string {
	var h *hinted
	if errors.As(err, &h) {
		return h.hint
	}
	return ""
}

// Interrupted is the one word for work that was ended from outside.
const Interrupted = "interrupted"

// ErrInterrupted ends a run that was interrupted after it did all it could.
var ErrInterrupted = WithCode(ExitInterrupted, errors.New(Interrupted))

// ErrPipe ends a run whose output nobody reads any more, as SIGPIPE would.
var ErrPipe = WithCode(ExitPipe, errors.New("the reader of stdout has gone"))
