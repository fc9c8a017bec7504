package memory

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// processMemoryCounters is PROCESS_MEMORY_COUNTERS of psapi.h.
type processMemoryCounters struct {
	size                       uint32
	pageFaultCount             uint32
	peakWorkingSetSize         uintptr
	workingSetSize             uintptr
	quotaPeakPagedPoolUsage    uintptr
	quotaPagedPoolUsage        uintptr
	quotaPeakNonPagedPoolUsage uintptr
	quotaNonPagedPoolUsage     uintptr
	pagefileUsage              uintptr
	peakPagefileUsage          uintptr
}

var getProcessMemoryInfo = windows.NewLazySystemDLL("kernel32.dll").NewProc("K32GetProcessMemoryInfo")

// PeakRSS returns the most memory, in bytes, that this process has had resident so far: its peak working set.
func PeakRSS() (int64, error) {
	var c processMemoryCounters
	c.size = uint32(unsafe.Sizeof(c))
	if err := getProcessMemoryInfo.Find(); err != nil {
		return 0, fmt.Errorf("memory: peak RSS: %w", err)
	}
	ok, _, err := getProcessMemoryInfo.Call(uintptr(windows.CurrentProcess()), uintptr(unsafe.Pointer(&c)), uintptr(c.size))
	if ok == 0 {
		return 0, fmt.Errorf("memory: peak RSS: %w", err)
	}
	return int64(c.peakWorkingSetSize), nil
}
