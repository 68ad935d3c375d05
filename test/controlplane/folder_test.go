package controlplane

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestFolderOfAKilledProcessIsCleared(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("TMPDIR", t.TempDir())
	folder := func(age time.Duration) (dir string, release func()) {
		dir, release, err := newFolder()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.Mkdir(filepath.Join(dir, "etcd"), 0o755)).To(Succeed())
		then := time.Now().Add(-age)
		g.Expect(os.Chtimes(filepath.Join(dir, lockFile), then, then)).To(Succeed())
		return dir, release
	}
	inUse, release := folder(time.Hour)
	defer release()
	killed, release := folder(time.Hour)
	release()
	starting, release := folder(0)
	release()
	_, release = folder(0)
	defer release()

	g.Expect(filepath.Join(inUse, "etcd")).To(BeADirectory())
	g.Expect(filepath.Join(starting, "etcd")).To(BeADirectory())
	g.Expect(filepath.Join(killed, "etcd")).NotTo(BeADirectory())
	g.Expect(filepath.Join(killed, logFolder)).To(BeADirectory())
}
