//go:build !linux

package controlplane

import "syscall"

// processAttributes give a child a process group of its own. Elsewhere than on
// Linux a child outlives this process if that ends without a Stop.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
