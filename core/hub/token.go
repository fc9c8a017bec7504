package hub

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Token finds the user's token where Hugging Face's own tools keep it: HF_TOKEN, else the file HF_TOKEN_PATH names, else the
// file token in HF_HOME, or in huggingface below XDG_CACHE_HOME or ~/.cache. It is "" when there is none. The error never
// repeats what is in the file.
func Token(getenv func(string) string) (string, error) {
	if t := strings.TrimSpace(getenv("HF_TOKEN")); t != "" {
		return t, nil
	}
	path := getenv("HF_TOKEN_PATH")
	if path == "" {
		home := getenv("HF_HOME")
		if home == "" {
			cache := getenv("XDG_CACHE_HOME")
			if cache == "" {
				user, err := os.UserHomeDir()
				if err != nil {
					return "", nil // nowhere to look
				}
				cache = filepath.Join(user, ".cache")
			}
			home = filepath.Join(cache, "huggingface")
		}
		path = filepath.Join(home, "token")
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("hub: read the token: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 4097))
	switch {
	case err != nil:
		return "", fmt.Errorf("hub: read the token: %w", err)
	case len(data) > 4096:
		return "", fmt.Errorf("hub: read the token: %s is too long to be one", path)
	}
	return strings.TrimSpace(string(data)), nil
}
