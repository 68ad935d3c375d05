package install_test

import (
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/mod/modfile"

	"github.com/dispatch-dev/dispatch/test/install"
)

// instruction is one of a Dockerfile, such as RUN, with the rest of its line.
type instruction struct{ name, args string }

// readDockerfile gives the instructions of each stage by its name.
func readDockerfile(t *testing.T, path string) (stages map[string][]instruction, names []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	stages = map[string][]instruction{}
	for line := range strings.Lines(strings.ReplaceAll(string(data), "\\\n", " ")) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, args, _ := strings.Cut(line, " ")
		if name == "FROM" {
			_, stage, _ := strings.Cut(args, " AS ")
			names = append(names, stage)
		}
		if len(names) == 0 {
			t.Fatalf("%s begins with %q, not with FROM", path, line)
		}
		stage := names[len(names)-1]
		stages[stage] = append(stages[stage], instruction{name, args})
	}
	return stages, names
}

// TestImages does what the Dockerfile says, as far as no container engine is needed for it: it copies what the
// Dockerfile copies, and nothing else, and runs the command that builds the programs, for each platform.
func TestImages(t *testing.T) {
	root, err := install.Root()
	if err != nil {
		t.Fatal(err)
	}
	stages, names := readDockerfile(t, filepath.Join(root, "Dockerfile"))
	g := NewWithT(t)
	g.Expect(names).To(Equal([]string{"build", "base", "dispatch-manager", "dispatch-admission"}))
	g.Expect(stages["build"][0].args).To(Equal("--platform=$BUILDPLATFORM golang:" + goVersion(t, root) + " AS build"))
	g.Expect(stages["base"]).To(Equal([]instruction{
		{"FROM", "gcr.io/distroless/static:nonroot AS base"},
		{"USER", "65532:65532"},
	}))
	ignored, err := os.ReadFile(filepath.Join(root, ".dockerignore"))
	g.Expect(err).NotTo(HaveOccurred())
	for _, program := range names[2:] {
		g.Expect(stages[program]).To(Equal([]instruction{
			{"FROM", "base AS " + program},
			{"COPY", "--from=build /src/bin/" + program + " /"},
			{"ENTRYPOINT", `["/` + program + `"]`},
		}))
	}

	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		t.Run("linux/"+arch, func(t *testing.T) {
			g := NewWithT(t)
			src := t.TempDir()
			ran := false
			for _, i := range stages["build"] {
				switch i.name {
				case "FROM", "ARG", "WORKDIR":
				case "COPY":
					paths := strings.Fields(i.args)
					to := paths[len(paths)-1]
					for _, from := range paths[:len(paths)-1] {
						g.Expect(strings.Split(string(ignored), "\n")).To(ContainElement("!"+strings.TrimSuffix(from, "/")), ".dockerignore")
						copyInto(t, filepath.Join(root, from), filepath.Join(src, to))
					}
				case "RUN":
					words := slices.DeleteFunc(strings.Fields(i.args), func(word string) bool { return strings.HasPrefix(word, "--mount=") })
					cmd := exec.CommandContext(t.Context(), "sh", "-ec", strings.Join(words, " "))
					cmd.Dir = src
					cmd.Env = append(os.Environ(), "TARGETOS=linux", "TARGETARCH="+arch)
					out, err := cmd.CombinedOutput()
					g.Expect(err).NotTo(HaveOccurred(), string(out))
					ran = true
				default:
					t.Fatalf("the test does not know %s", i.name)
				}
			}
			g.Expect(ran).To(BeTrue())
			for _, program := range names[2:] {
				g.Expect(checkStatic(filepath.Join(src, "bin", program), machine)).To(Succeed())
			}
		})
	}
}

func goVersion(t *testing.T, root string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := modfile.Parse("go.mod", data, nil)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(file.Go.Version, ".0")
}

// copyInto copies a folder's content into the folder to, or a file into it.
func copyInto(t *testing.T, from, to string) {
	t.Helper()
	info, err := os.Stat(from)
	if err == nil && info.IsDir() {
		err = os.CopyFS(to, os.DirFS(from))
	} else if err == nil {
		var data []byte
		if data, err = os.ReadFile(from); err == nil {
			err = errors.Join(os.MkdirAll(to, 0o755), os.WriteFile(filepath.Join(to, filepath.Base(from)), data, 0o644))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// checkStatic looks that a program runs on the machine without a loader and without libraries.
func checkStatic(path string, machine elf.Machine) error {
	file, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if file.Machine != machine {
		return errors.New(path + " is for " + file.Machine.String())
	}
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			loader, _ := io.ReadAll(segment.Open())
			return errors.New(path + " needs the loader " + string(loader))
		}
	}
	if libraries, err := file.ImportedLibraries(); err != nil || len(libraries) > 0 {
		return errors.Join(errors.New(path+" needs libraries: "+strings.Join(libraries, ", ")), err)
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	for _, setting := range info.Settings {
		if setting.Key == "CGO_ENABLED" && setting.Value == "0" {
			return nil
		}
	}
	return errors.New(path + " was built with cgo")
}
