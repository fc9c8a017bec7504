// Package all links every backend into a program, one file a backend.
package all
