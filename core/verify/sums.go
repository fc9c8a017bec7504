package verify

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"strings"

	"github.com/k3infer/k3/core/disk"
)

// sumFiles are the names under which the SHA-256 of files are put beside them, as sha256sum writes and checks them.
var sumFiles = []string{"SHA256SUMS", "SHA256SUMS.txt", "sha256sums.txt", "sha256sum.txt"}

// maxSums is the size above which a file cannot be one.
const maxSums = 1 << 20

// readSums finds the checksums that came with a checkpoint without a manifest: by file, and the name of the file they
// are in, "" if there is none.
func readSums(files disk.Files) (map[string]string, string, error) {
	for _, name := range sumFiles {
		data, err := disk.ReadAll(files, name, maxSums)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return parseSums(data), name, err
	}
	return nil, "", nil
}

// parseSums reads lines "SUM  NAME" or "SUM *NAME", passing over others. Of names in other directories nothing is known
// here, nor of those that have two sums.
func parseSums(data []byte) map[string]string {
	sums := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		sum, name, ok := strings.Cut(strings.TrimRight(lines.Text(), "\r"), " ")
		if !ok || len(sum) != 64 || strings.Trim(sum, "0123456789abcdefABCDEF") != "" ||
			len(name) < 2 || name[0] != ' ' && name[0] != '*' {
			continue
		}
		name, sum = strings.TrimPrefix(name[1:], "./"), strings.ToLower(sum)
		if name == "" || strings.ContainsAny(name, `/\`) {
			continue
		}
		if old, seen := sums[name]; seen && old != sum {
			sum = ""
		}
		sums[name] = sum
	}
	return sums
}
