package ports

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestReservedPortsDiffer(t *testing.T) {
	g := NewWithT(t)
	seen := map[int]bool{}
	for range 50 {
		port, release, err := Reserve()
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(release)
		g.Expect(port).To(And(BeNumerically(">=", firstPort), BeNumerically("<=", lastPort)))
		g.Expect(seen).NotTo(HaveKey(port))
		seen[port] = true
	}
}
