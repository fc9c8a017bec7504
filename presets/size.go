package presets

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// Size is a number of bytes. Its zero value means that none was given.
type Size int64

// maxSize bounds sizes: nothing this program runs on has more.
const maxSize = 8 << 50

// units from large to small, a binary one before its decimal neighbour.
var units = []struct {
	name  string
	short string // other names of a binary one
	bytes int64
}{
	{"TiB", "T Ti", 1 << 40}, {"TB", "", 1e12}, {"GiB", "G Gi", 1 << 30}, {"GB", "", 1e9}, {"MiB", "M Mi", 1 << 20}, {"MB", "", 1e6},
	{"KiB", "K Ki", 1 << 10}, {"KB", "", 1e3}, {"B", "", 1},
}

// ParseSize reads a positive size: a number with one of the units GiB, GB, MiB, MB (also T and K, in any case, with or without
// a space), or plain bytes. GiB is 2^30 and GB 10^9; a bare G is GiB, as Docker, Java and systemd have it.
func ParseSize(text string) (Size, error) {
	number := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	unit, factor := text[len(number):], int64(0)
	if unit == "" {
		factor = 1
	}
	for _, u := range units {
		names := append(strings.Fields(u.short), u.name)
		if slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, unit) }) {
			factor = u.bytes
		}
	}
	number = strings.TrimRight(number, " ")
	digits := strings.Trim(number, "0123456789")
	value, ok := new(big.Rat).SetString(number)
	if factor == 0 || !ok || len(number) > 20 || digits != "" && (digits != "." || unit == "") {
		return 0, fmt.Errorf("%q is not a size such as 8GiB, 7.5GB, 900MiB, 900MB or a whole number of bytes", text)
	}
	value.Mul(value, new(big.Rat).SetInt64(factor))
	bytes := new(big.Int).Quo(value.Num(), value.Denom())
	if bytes.Sign() <= 0 || !bytes.IsInt64() || bytes.Int64() > maxSize {
		return 0, fmt.Errorf("%q is not a size from 1 byte to 8192TiB", text)
	}
	return Size(bytes.Int64()), nil
}

// String writes the size with the largest unit that divides it, so that ParseSize gives the same size again.
func (s Size) String() string {
	for _, u := range units {
		if s != 0 && int64(s)%u.bytes == 0 && u.bytes > 1 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}
