package disk

import (
	"io"

	"golang.org/x/sys/windows"
)

// directFile is a handle opened without buffering. It is read by overlapped calls, each with its own offset and event,
// because reads of an os.File wait for each other on Windows.
type directFile struct{ handle windows.Handle }

func openDirect(path string) (DirectReader, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return nil, err
	}
	h, err := windows.CreateFile(name, windows.GENERIC_READ,
		windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE, nil, windows.OPEN_EXISTING,
		windows.FILE_FLAG_NO_BUFFERING|windows.FILE_FLAG_OVERLAPPED, 0)
	if err != nil {
		return nil, err
	}
	return &directFile{h}, nil
}

// ReadAt needs p outside the Go heap or pinned while the system fills it: the pool's buffers are mapped memory.
func (f *directFile) ReadAt(p []byte, off int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	event, err := windows.CreateEvent(nil, 1, 0, nil)
	if err != nil {
		return 0, err
	}
	defer windows.CloseHandle(event)
	o := &windows.Overlapped{Offset: uint32(off), OffsetHigh: uint32(off >> 32), HEvent: event}
	var n uint32
	err = windows.ReadFile(f.handle, p, &n, o)
	if err == windows.ERROR_IO_PENDING {
		err = windows.GetOverlappedResult(f.handle, o, &n, true)
	}
	switch {
	case err == windows.ERROR_HANDLE_EOF:
		err = io.EOF
	case err == nil && int(n) < len(p):
		err = io.EOF
	}
	return int(n), err
}

func (f *directFile) Close() error { return windows.CloseHandle(f.handle) }
