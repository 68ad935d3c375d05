package controlplane

import (
	"os"
	"path/filepath"
	"time"

	"github.com/dispatch-dev/dispatch/test/controlplane/internal/filelock"
)

const (
	folderPattern = "dispatch-controlplane-*"
	logFolder     = "logs"
	// lockFile in a cluster's folder is locked as long as the cluster's process
	// lives.
	lockFile = "lock"
	// settled is when a lock is old enough that its owner has surely taken it.
	settled = time.Minute
)

// newFolder makes the folder of a cluster. Each holds 100 MB and more, so those
// of processes that were killed are cleared out here, but for the logs.
func newFolder() (dir string, release func(), err error) {
	clearLeftFolders()
	dir, err = os.MkdirTemp("", folderPattern)
	if err != nil {
		return "", nil, err
	}
	if err := os.Mkdir(filepath.Join(dir, logFolder), 0o755); err != nil {
		return "", nil, err
	}
	release, err = filelock.TryLock(filepath.Join(dir, lockFile))
	return dir, release, err
}

func clearLeftFolders() {
	locks, _ := filepath.Glob(filepath.Join(os.TempDir(), folderPattern, lockFile)) // the pattern is well-formed
	for _, lock := range locks {
		info, err := os.Stat(lock)
		if err != nil || time.Since(info.ModTime()) < settled {
			continue
		}
		unlock, err := filelock.TryLock(lock)
		if err != nil {
			continue // it is in use, or another user's
		}
		clearButLogs(filepath.Dir(lock))
		unlock()
	}
}

// clearButLogs has no use for errors: what is left lies in the temporary folder.
func clearButLogs(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if entry.Name() != logFolder {
			_ = os.RemoveAll(filepath.Join(dir, entry.Name()))
		}
	}
}
