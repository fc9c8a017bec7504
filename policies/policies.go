// Package policies holds the expert cache policies. Each is one file with one type that registers itself; a program gets
// them all by importing the package for its side effect.
package policies
