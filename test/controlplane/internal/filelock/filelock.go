// Package filelock lets one of several processes at a time do something.
package filelock

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// ErrLocked says that another holder has the lock: try again later.
var ErrLocked = errors.New("locked")

// TryLock takes the lock on a file, which it creates. The kernel drops the lock
// when the process ends, however it ends.
func TryLock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrLocked
		}
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return func() { _ = file.Close() }, nil
}
