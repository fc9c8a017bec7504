package disk

// Holes is the share of a file's bytes that no disk holds, from 0 to 1: parts that were never written and read as zeros, faster
// than any disk. It is 0 where the system does not say.
func Holes(f File) float64 {
	d, ok := f.(*dirFile)
	if !ok || d.size == 0 {
		return 0
	}
	held, err := allocated(d)
	if err != nil || held >= d.size {
		return 0
	}
	return 1 - float64(held)/float64(d.size)
}
