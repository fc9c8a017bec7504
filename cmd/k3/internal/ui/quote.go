package ui

import (
	"runtime"
	"strings"
)

// QuoteArgument writes an argument so that a shell takes it as it is: that of Unix, or both of those of Windows as far
// as they agree.
func QuoteArgument(s string) string { return quoteFor(runtime.GOOS, s) }

func quoteFor(system, s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("._-/=:,@+", r) || r == '\\' && system == "windows"
	}
	quoted := s
	switch {
	case s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) && s[0] != '@':
	case system != "windows":
		quoted = "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	case strings.ContainsAny(s, "$`\""): // PowerShell reads these between double quotes; cmd has no others
		quoted = "'" + strings.ReplaceAll(s, "'", "''") + "'"
	default:
		quoted = `"` + s
		if strings.HasSuffix(s, `\`) {
			quoted += `\` // or the quote would be part of the argument
		}
		quoted += `"`
	}
	return quoted
}

// QuotePath is quoteArgument for the path of a file, which must not look like a flag.
func QuotePath(path string) string {
	if strings.HasPrefix(path, "-") {
		path = "./" + path
	}
	return QuoteArgument(path)
}
