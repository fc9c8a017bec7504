package ui

import (
	"os"

	"golang.org/x/sys/windows"
)

// understandsEscapes makes the console of f understand escape sequences, and reports whether it does.
func understandsEscapes(f *os.File) bool {
	var mode uint32
	h := windows.Handle(f.Fd())
	if err := windows.GetConsoleMode(h, &mode); err != nil {
		return false
	}
	return windows.SetConsoleMode(h, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
