//go:build !windows

package ui

import "os"

// understandsEscapes reports whether the terminal f knows escape sequences.
func understandsEscapes(*os.File) bool { return os.Getenv("TERM") != "dumb" }
