package memory

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

// memoryStatus is MEMORYSTATUSEX of sysinfoapi.h.
type memoryStatus struct {
	length                                                           uint32
	load                                                             uint32
	totalPhys, availPhys, totalPageFile, availPageFile, totalVirtual uint64
	availVirtual, availExtendedVirtual                               uint64
}

var globalMemoryStatus = windows.NewLazySystemDLL("kernel32.dll").NewProc("GlobalMemoryStatusEx")

func probe() (m Machine) {
	var s memoryStatus
	s.length = uint32(unsafe.Sizeof(s))
	err := globalMemoryStatus.Find()
	if err == nil {
		if ok, _, callErr := globalMemoryStatus.Call(uintptr(unsafe.Pointer(&s))); ok == 0 {
			err = callErr
		}
	}
	if err != nil {
		m.warn("memory of the host: GlobalMemoryStatusEx: %v", err)
	} else {
		m.add("host", s.totalPhys, clip(s.totalPhys)-clip(s.availPhys))
		// Committed memory needs room in RAM or in the paging file.
		m.add("commit limit", s.totalPageFile, clip(s.totalPageFile)-clip(s.availPageFile))
	}
	// The limits of the job this process is in, as containers set them; without a job the call fails.
	var job windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	err = windows.QueryInformationJobObject(0, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&job)),
		uint32(unsafe.Sizeof(job)), nil)
	if err == nil {
		if job.BasicLimitInformation.LimitFlags&windows.JOB_OBJECT_LIMIT_PROCESS_MEMORY != 0 {
			m.add("job, per process", uint64(job.ProcessMemoryLimit), 0)
		}
		if job.BasicLimitInformation.LimitFlags&windows.JOB_OBJECT_LIMIT_JOB_MEMORY != 0 {
			m.add("job", uint64(job.JobMemoryLimit), 0)
		}
	}
	return m
}
