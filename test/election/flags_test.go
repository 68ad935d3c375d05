package election

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"

	"github.com/dispatch-dev/dispatch/test/controlplane"
)

// TestBadFlags sees both programs refuse what cannot work, in one line and before
// they ask the API server for anything: there is none.
func TestBadFlags(t *testing.T) {
	t.Parallel()
	kubeconfig, err := controlplane.Kubeconfig(&rest.Config{Host: "https://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{manager, admission} {
		t.Run(program, func(t *testing.T) {
			g := NewWithT(t)
			output, code := runProgram(t, program, "-kubeconfig="+path, "-renew-deadline=15s")
			g.Expect(output).To(Equal(program + ": -renew-deadline 15s must be less than -lease-duration 15s\n"))
			g.Expect(code).To(Equal(1))
		})
	}
	for _, flag := range []string{"-leader-elect=false", "-leader-elect-release-on-cancel=true"} {
		t.Run(admission+" "+flag, func(t *testing.T) {
			g := NewWithT(t)
			output, code := runProgram(t, admission, "-kubeconfig="+path, flag)
			g.Expect(output).To(HavePrefix("flag provided but not defined"))
			g.Expect(code).NotTo(Equal(0))
		})
	}
}

func runProgram(t *testing.T, program string, args ...string) (output string, code int) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(programs, program), args...).CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out), 0
}
