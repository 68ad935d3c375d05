package controlplane

import (
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
)

var (
	_ TB = (*testing.T)(nil)
	_ TB = ginkgo.FullGinkgoTInterface(nil)
)

func TestOptionsThatContradict(t *testing.T) {
	for name, options := range map[string]Options{
		"ConfigureKueue": {ConfigureKueue: func(*kueueconfig.Configuration) {}},
		"Controllers":    {Controllers: []string{"job-controller"}},
		"Nodes":          {Nodes: 2},
		"Args":           {Args: map[string][]string{"kwok": {"--node-ip=1.2.3.4"}}},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(options.setDefaults()).To(MatchError(ContainSubstring(name)))
		})
	}
}

func TestTail(t *testing.T) {
	g := NewWithT(t)
	g.Expect(tail([]byte("one\ntwo\n"))).To(Equal("one\ntwo"))
	g.Expect(tail([]byte(strings.Repeat("x\n", tailLines+5)))).To(Equal(strings.TrimSpace(strings.Repeat("x\n", tailLines))))
}
