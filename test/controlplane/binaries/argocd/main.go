// Command argocd is the part of Argo CD that syncs, as subcommands by the names of its processes, and its judgement
// of an object's health. Argo CD's own command has its API server, command line and much else, and takes far longer
// to build.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	appcontroller "github.com/argoproj/argo-cd/v3/cmd/argocd-application-controller/commands"
	reposerver "github.com/argoproj/argo-cd/v3/cmd/argocd-repo-server/commands"
	"github.com/argoproj/argo-cd/v3/util/lua"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func main() {
	root := &cobra.Command{Use: "argocd", SilenceUsage: true}
	root.AddCommand(appcontroller.NewCommand(), reposerver.NewCommand(), &cobra.Command{
		Use:   "health SCRIPT OBJECT...",
		Short: "Print, for each file with an object, its health by the script, one JSON object a line",
		Args:  cobra.MinimumNArgs(2),
		RunE:  func(_ *cobra.Command, args []string) error { return printHealth(args[0], args[1:]) },
	})
	if err := root.Execute(); err != nil {
		os.Exit(1)
	}
}

func printHealth(script string, paths []string) error {
	text, err := os.ReadFile(script)
	if err != nil {
		return err
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &object.Object); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		vm := lua.VM{}
		health, err := vm.ExecuteHealthLua(object, string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		line, err := json.Marshal(health)
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return nil
}
