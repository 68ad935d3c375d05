package controlplane

import (
	"context"
	"fmt"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
)

const (
	adminKubeconfig = "admin.kubeconfig"
	// tokenLifetime outlasts every test.
	tokenLifetime = 24 * 60 * 60
)

// Config is an administrator's, a fresh copy for each call, without a client
// side rate limit.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.admin) }

// KubeconfigPath is a file with the administrator's kubeconfig.
func (c *Cluster) KubeconfigPath() string { return filepath.Join(c.dir, adminKubeconfig) }

// ServiceAccountConfig is what a client needs to act as a ServiceAccount, which
// has to exist: the cluster's address, its CA and a token. The API server
// verifies the token and enforces RBAC; a role granted a moment ago can take it
// some milliseconds to see.
func (c *Cluster) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](tokenLifetime)},
	}
	response, err := c.client.CoreV1().ServiceAccounts(namespace).
		CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("requesting a token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	return &rest.Config{
		Host:            c.admin.Host,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.admin.CAData},
		BearerToken:     response.Status.Token,
	}, nil
}

// Kubeconfig writes a kubeconfig with all that config says about where the
// server is, how it is verified and who the client is. It names no files. A test
// that puts a proxy in front of the server changes config.Host, and the CA if
// the proxy ends TLS, before.
func Kubeconfig(config *rest.Config) ([]byte, error) {
	const name = "default"
	return clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{name: {
			Server:                   config.Host,
			CertificateAuthorityData: config.CAData,
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{name: {
			ClientCertificateData: config.CertData,
			ClientKeyData:         config.KeyData,
			Token:                 config.BearerToken,
		}},
		Contexts: map[string]*clientcmdapi.Context{name: {
			Cluster:  name,
			AuthInfo: name,
		}},
		CurrentContext: name,
	})
}
