// Package ui is how the commands of k3 speak with a user: progress lines, text as it is generated, errors in plain words with
// their exit codes, quantities and tables, and the line editor of a chat. It knows no command and no flag.
package ui
