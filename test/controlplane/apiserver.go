package controlplane

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/dispatch-dev/dispatch/test/controlplane/binaries"
)

func (c *Cluster) startEtcd(ctx context.Context) error {
	port, err := c.port()
	if err != nil {
		return err
	}
	c.etcdURL = fmt.Sprintf("http://127.0.0.1:%d", port)
	ready := func(ctx context.Context) error { return answersOK(ctx, c.etcdURL+"/readyz") }
	c.Etcd = c.component(binaries.Etcd, ready,
		"--data-dir="+filepath.Join(c.dir, "etcd"),
		"--listen-client-urls="+c.etcdURL,
		"--advertise-client-urls="+c.etcdURL,
		// It has no peers and may listen for them anywhere.
		"--listen-peer-urls=http://127.0.0.1:0",
		// The data need not survive the machine.
		"--unsafe-no-fsync",
	)
	return c.Etcd.Start(ctx)
}

func answersOK(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}

func (c *Cluster) startAPIServer(ctx context.Context) error {
	port, err := c.port()
	if err != nil {
		return err
	}
	args, err := c.apiServerArgs(port)
	if err != nil {
		return err
	}
	config := c.Config()
	config.WarningHandler = rest.NoWarnings{} // of the deprecated version in Kueue's readiness probe
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	kubeconfig, err := Kubeconfig(c.Config())
	if err != nil {
		return err
	}
	if _, err := c.write(adminKubeconfig, kubeconfig); err != nil {
		return err
	}

	ready := func(ctx context.Context) error {
		if err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
			return err
		}
		// The server makes these namespaces by itself, but says that it is ready
		// before it has.
		for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem} {
			if _, err := c.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		return nil
	}
	c.APIServer = c.component(binaries.KubeAPIServer, ready, args...)
	return c.APIServer.Start(ctx)
}

// apiServerArgs also issues the certificates that the arguments name, and the
// administrator's credentials, which are worth nothing elsewhere.
func (c *Cluster) apiServerArgs(port int) ([]string, error) {
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	server, err := ca.server()
	if err != nil {
		return nil, err
	}
	admin, err := ca.client("admin", "system:masters")
	if err != nil {
		return nil, err
	}
	c.admin = &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", port),
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   ca.pem,
			CertData: admin.cert,
			KeyData:  admin.key,
		},
		QPS: -1, // a test need not wait for itself
	}
	_, tokenKey, err := newKey()
	if err != nil {
		return nil, err
	}

	args := []string{
		"--etcd-servers=" + c.etcdURL,
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port),
		// It publishes its address nowhere. Otherwise it would refuse to
		// advertise a loopback address.
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.0.0.0/24",
		"--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
	}
	for _, file := range []struct {
		name  string
		data  []byte
		flags []string
	}{
		{"ca.crt", ca.pem, []string{"client-ca-file"}},
		{"server.crt", server.cert, []string{"tls-cert-file"}},
		{"server.key", server.key, []string{"tls-private-key-file"}},
		{"token.key", tokenKey, []string{"service-account-key-file", "service-account-signing-key-file"}},
	} {
		path, err := c.write(file.name, file.data)
		if err != nil {
			return nil, err
		}
		for _, flag := range file.flags {
			args = append(args, "--"+flag+"="+path)
		}
	}

	disabled := []string{}
	if !c.options.ControllerManager {
		// Nothing makes the ServiceAccounts that this plugin wants for pods.
		disabled = append(disabled, "ServiceAccount")
	}
	if c.options.KWOK {
		// It taints new nodes until the node lifecycle controller, which does
		// not run, finds them ready.
		disabled = append(disabled, "TaintNodesByCondition")
	}
	if len(disabled) > 0 {
		args = append(args, "--disable-admission-plugins="+strings.Join(disabled, ","))
	}
	if len(c.options.AdmissionPlugins) > 0 {
		args = append(args, "--enable-admission-plugins="+strings.Join(c.options.AdmissionPlugins, ","))
	}
	audit, err := c.auditArgs()
	return append(args, audit...), err
}
