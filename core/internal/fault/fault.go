// Package fault makes errors that match a sentinel without repeating its text.
package fault

import "fmt"

// Error is an error of some kind.
type Error struct {
	kind error
	msg  string
}

// Errorf formats an error whose text is only what it is given, and which errors.Is finds to be kind.
func Errorf(kind error, format string, args ...any) error {
	return &Error{kind, fmt.Sprintf(format, args...)}
}

// Error is the text, without that of the kind.
func (f *Error) Error() string { return f.msg }

// Is says whether target is the kind.
func (f *Error) Is(target error) bool { return target == f.kind }
