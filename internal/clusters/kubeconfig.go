package clusters

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// maxKubeConfigBytes is the size beyond which a kubeconfig is not parsed. One context with its
// certificates takes some 10 KiB; a Secret can hold 1 MiB, which would cost a parser many times that.
const maxKubeConfigBytes = 256 << 10

// KubeConfigError is why a kubeconfig is not used. Retrying cannot help, only another kubeconfig can.
type KubeConfigError struct {
	// Reason is KubeConfigInvalidReason or KubeConfigInsecureReason.
	Reason string
	// Message names the field and the cure. It is one of a fixed set of texts, because it goes to status,
	// events and logs and must hold nothing of the Secret: no name, no URL, no echo of the parser's.
	Message string
}

func (e *KubeConfigError) Error() string {
	return e.Message
}

func invalid(message string) *KubeConfigError {
	return &KubeConfigError{Reason: dispatchv1alpha1.KubeConfigInvalidReason, Message: message}
}

func insecure(message string) *KubeConfigError {
	return &KubeConfigError{Reason: dispatchv1alpha1.KubeConfigInsecureReason, Message: message}
}

// ParseKubeConfig makes a client config of the current context of a kubeconfig, and of nothing else: no
// environment variable, file or other context has a say. It opens no file, runs nothing and dials
// nothing. A kubeconfig that would need any of that, or less than verified TLS, is refused. The error is
// a *KubeConfigError.
func ParseKubeConfig(data []byte) (*rest.Config, error) {
	if len(data) > maxKubeConfigBytes {
		return nil, invalid("the kubeconfig is larger than 256 KiB: keep one cluster, user and context in it")
	}
	// Fields that are not known are passed over, as kubectl does. What is passed over is not used, so a
	// misspelt insecure-skip-tls-verify relaxes nothing, and a kubeconfig that a newer kubectl wrote works.
	// The parser's error quotes its input.
	config, err := clientcmd.Load(data)
	if err != nil {
		return nil, invalid("the kubeconfig does not parse: `kubectl config view --raw --minify` writes one that does")
	}
	cluster, user, err := currentContext(config)
	if err != nil {
		return nil, err
	}
	if err := refuseUser(user); err != nil {
		return nil, err
	}
	if err := refuseCluster(cluster); err != nil {
		return nil, err
	}
	if err := checkData(cluster, user); err != nil {
		return nil, err
	}
	// Built by hand. clientcmd's own conversion would also look for defaults and prompt for passwords.
	return &rest.Config{
		Host:        cluster.Server,
		BearerToken: user.Token,
		TLSClientConfig: rest.TLSClientConfig{
			ServerName: cluster.TLSServerName,
			CAData:     cluster.CertificateAuthorityData,
			CertData:   user.ClientCertificateData,
			KeyData:    user.ClientKeyData,
		},
		DisableCompression: cluster.DisableCompression,
	}, nil
}

func currentContext(config *clientcmdapi.Config) (*clientcmdapi.Cluster, *clientcmdapi.AuthInfo, error) {
	if config.CurrentContext == "" {
		return nil, nil, invalid("current-context is empty: `kubectl config use-context` sets it")
	}
	context := config.Contexts[config.CurrentContext]
	if context == nil {
		return nil, nil, invalid("current-context names no entry of contexts: `kubectl config use-context` sets it")
	}
	cluster := config.Clusters[context.Cluster]
	if cluster == nil {
		return nil, nil, invalid("the current context's cluster names no entry of clusters: `kubectl config set-context` sets it")
	}
	user := config.AuthInfos[context.AuthInfo]
	if user == nil {
		return nil, nil, invalid("the current context's user names no entry of users: `kubectl config set-context` sets it")
	}
	return cluster, user, nil
}

// refuseUser refuses every way to authenticate but a token and a client certificate, both inline. A
// plugin runs, and a path reads, in the manager's own pod and with its rights.
func refuseUser(user *clientcmdapi.AuthInfo) error {
	const plugin = ": dispatch runs no credential plugin; use token, or client-certificate-data and client-key-data"
	const impersonation = ": dispatch does not impersonate; give the user's own credentials the rights"
	for _, field := range []struct {
		isSet   bool
		message string
	}{
		{user.Exec != nil, "user.exec is set" + plugin},
		{user.AuthProvider != nil, "user.auth-provider is set" + plugin},
		{user.TokenFile != "", "user.tokenFile is set: dispatch reads no file; put the token into token"},
		{user.ClientCertificate != "", "user.client-certificate is set: dispatch reads no file; put the certificate into client-certificate-data"},
		{user.ClientKey != "", "user.client-key is set: dispatch reads no file; put the key into client-key-data"},
		{user.Username != "", "user.username is set: API servers take no passwords; use token, or client-certificate-data and client-key-data"},
		{user.Password != "", "user.password is set: API servers take no passwords; use token, or client-certificate-data and client-key-data"},
		{user.Impersonate != "", "user.as is set" + impersonation},
		{user.ImpersonateUID != "", "user.as-uid is set" + impersonation},
		{len(user.ImpersonateGroups) > 0, "user.as-groups is set" + impersonation},
		{len(user.ImpersonateUserExtra) > 0, "user.as-user-extra is set" + impersonation},
	} {
		if field.isSet {
			return insecure(field.message)
		}
	}
	return nil
}

// refuseCluster refuses every server but one that is dialled directly and proves who it is.
func refuseCluster(cluster *clientcmdapi.Cluster) error {
	switch {
	case cluster.InsecureSkipTLSVerify:
		return insecure("cluster.insecure-skip-tls-verify is set: put the server's CA into certificate-authority-data")
	case cluster.CertificateAuthority != "":
		return insecure("cluster.certificate-authority is set: dispatch reads no file; put the CA into certificate-authority-data")
	case cluster.ProxyURL != "":
		return insecure("cluster.proxy-url is set: dispatch dials no proxy; name a server that it can reach directly")
	case cluster.Server == "":
		return insecure("cluster.server is empty: it must be https://<host>:<port>")
	}
	server, err := url.Parse(cluster.Server)
	switch {
	case err != nil || server.Hostname() == "":
		return insecure("cluster.server is no URL: it must be https://<host>:<port>")
	case server.Scheme != "https":
		return insecure("cluster.server is not https: it must be https://<host>:<port>")
	case server.User != nil:
		return insecure("cluster.server holds a user name: it must be https://<host>:<port>")
	// The query and the fragment would be lost on the way to a request.
	case strings.ContainsAny(cluster.Server, "?#"):
		return insecure("cluster.server has a query or a fragment: it must be https://<host>:<port>")
	}
	return nil
}

// checkData finds here, where it can be named, what would otherwise fail at every dial.
func checkData(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) error {
	hasCert, hasKey := len(user.ClientCertificateData) > 0, len(user.ClientKeyData) > 0
	switch {
	// Without a CA the system's roots verify the server, as with kubectl.
	case len(cluster.CertificateAuthorityData) > 0 && !x509.NewCertPool().AppendCertsFromPEM(cluster.CertificateAuthorityData):
		return invalid("cluster.certificate-authority-data holds no certificate: it must be base64 of PEM")
	case hasCert && !hasKey:
		return invalid("user.client-key-data is empty: client-certificate-data needs its key")
	case hasKey && !hasCert:
		return invalid("user.client-certificate-data is empty: client-key-data needs its certificate")
	// With neither, every request would be anonymous, which is never what was meant.
	case !hasCert && user.Token == "":
		return invalid("user has no credentials: set token, or client-certificate-data and client-key-data")
	// A line break at the end of a token is a common slip, and no HTTP header can carry it.
	case strings.ContainsFunc(user.Token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return invalid("user.token holds a space, a line break or another character that no token has")
	}
	if hasCert {
		if _, err := tls.X509KeyPair(user.ClientCertificateData, user.ClientKeyData); err != nil {
			return invalid("user.client-certificate-data and client-key-data are no pair: both must be base64 of PEM, of one certificate and its key")
		}
	}
	return nil
}
