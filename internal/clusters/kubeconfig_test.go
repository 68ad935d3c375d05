package clusters

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// marker is in every value of the kubeconfigs below, and must be in no message.
const marker = "hush"

var (
	kubeConfigCA     = issue(nil, nil)
	kubeConfigClient = issue(kubeConfigCA, nil)
)

// kubeConfigRow changes a kubeconfig that is accepted: its cluster c, its user u and the rest k.
type kubeConfigRow struct {
	name   string
	change func(k *clientcmdv1.Config, c *clientcmdv1.Cluster, u *clientcmdv1.AuthInfo)
	reason string // empty: accepted
	field  string // that the message begins with
}

func kubeConfigRows() []kubeConfigRow {
	const (
		isInsecure = dispatchv1alpha1.KubeConfigInsecureReason
		isInvalid  = dispatchv1alpha1.KubeConfigInvalidReason
	)
	type (
		kubeConfig = *clientcmdv1.Config
		cluster    = *clientcmdv1.Cluster
		user       = *clientcmdv1.AuthInfo
	)
	server := func(server string) func(kubeConfig, cluster, user) {
		return func(_ kubeConfig, c cluster, _ user) { c.Server = server }
	}
	token := func(token string) func(kubeConfig, cluster, user) {
		return func(_ kubeConfig, _ cluster, u user) { u.Token = token }
	}
	clientCert := func(cert, key []byte) func(kubeConfig, cluster, user) {
		return func(_ kubeConfig, _ cluster, u user) {
			u.Token, u.ClientCertificateData, u.ClientKeyData = "", cert, key
		}
	}
	extension := []clientcmdv1.NamedExtension{{Name: marker, Extension: runtime.RawExtension{Raw: []byte(`{"hush":1}`)}}}
	return []kubeConfigRow{
		{"token and CA", func(kubeConfig, cluster, user) {}, "", ""},
		{"client certificate", clientCert(kubeConfigClient.certPEM, kubeConfigClient.keyPEM), "", ""},
		{"the system's roots", func(_ kubeConfig, c cluster, _ user) { c.CertificateAuthorityData = nil }, "", ""},
		{"tls-server-name", func(_ kubeConfig, c cluster, _ user) { c.TLSServerName = marker }, "", ""},
		{"disable-compression", func(_ kubeConfig, c cluster, _ user) { c.DisableCompression = true }, "", ""},
		{"server with a path", server("https://hush.example/k8s/clusters/hush"), "", ""},
		{"server by IPv6", server("https://[::1]:6443"), "", ""},
		{"extensions", func(k kubeConfig, c cluster, u user) {
			k.Extensions, c.Extensions, u.Extensions = extension, extension, extension
		}, "", ""},
		{"insecure entries that the current context does not use", func(k kubeConfig, _ cluster, _ user) {
			k.Clusters = append(k.Clusters, clientcmdv1.NamedCluster{Name: "other", Cluster: clientcmdv1.Cluster{Server: "http://hush", InsecureSkipTLSVerify: true}})
			k.AuthInfos = append(k.AuthInfos, clientcmdv1.NamedAuthInfo{Name: "other", AuthInfo: clientcmdv1.AuthInfo{Exec: &clientcmdv1.ExecConfig{Command: marker}}})
			k.Contexts = append(k.Contexts, clientcmdv1.NamedContext{Name: "other", Context: clientcmdv1.Context{Cluster: "other", AuthInfo: "other"}})
		}, "", ""},

		{"exec", func(_ kubeConfig, _ cluster, u user) { u.Exec = &clientcmdv1.ExecConfig{Command: marker} }, isInsecure, "user.exec "},
		{"empty exec", func(_ kubeConfig, _ cluster, u user) { u.Exec = &clientcmdv1.ExecConfig{} }, isInsecure, "user.exec "},
		{"auth-provider", func(_ kubeConfig, _ cluster, u user) {
			u.AuthProvider = &clientcmdv1.AuthProviderConfig{Name: marker, Config: map[string]string{marker: marker}}
		}, isInsecure, "user.auth-provider "},
		{"tokenFile", func(_ kubeConfig, _ cluster, u user) { u.TokenFile = marker }, isInsecure, "user.tokenFile "},
		{"client-certificate", func(_ kubeConfig, _ cluster, u user) { u.ClientCertificate = marker }, isInsecure, "user.client-certificate "},
		{"client-key", func(_ kubeConfig, _ cluster, u user) { u.ClientKey = marker }, isInsecure, "user.client-key "},
		{"username", func(_ kubeConfig, _ cluster, u user) { u.Username = marker }, isInsecure, "user.username "},
		{"password", func(_ kubeConfig, _ cluster, u user) { u.Password = marker }, isInsecure, "user.password "},
		{"as", func(_ kubeConfig, _ cluster, u user) { u.Impersonate = marker }, isInsecure, "user.as "},
		{"as-uid", func(_ kubeConfig, _ cluster, u user) { u.ImpersonateUID = marker }, isInsecure, "user.as-uid "},
		{"as-groups", func(_ kubeConfig, _ cluster, u user) { u.ImpersonateGroups = []string{marker} }, isInsecure, "user.as-groups "},
		{"as-user-extra", func(_ kubeConfig, _ cluster, u user) {
			u.ImpersonateUserExtra = map[string][]string{marker: {marker}}
		}, isInsecure, "user.as-user-extra "},

		{"insecure-skip-tls-verify", func(_ kubeConfig, c cluster, _ user) { c.InsecureSkipTLSVerify = true }, isInsecure, "cluster.insecure-skip-tls-verify "},
		{"certificate-authority", func(_ kubeConfig, c cluster, _ user) { c.CertificateAuthority = marker }, isInsecure, "cluster.certificate-authority "},
		{"proxy-url", func(_ kubeConfig, c cluster, _ user) { c.ProxyURL = "https://hush" }, isInsecure, "cluster.proxy-url "},
		{"server: empty", server(""), isInsecure, "cluster.server is empty"},
		{"server: http", server("http://hush"), isInsecure, "cluster.server is not https"},
		{"server: unix", server("unix://hush"), isInsecure, "cluster.server is not https"},
		{"server: host only", server("hush.example"), isInsecure, "cluster.server is no URL"},
		{"server: host and port", server("hush.example:6443"), isInsecure, "cluster.server is no URL"},
		{"server: port only", server("https://:6443"), isInsecure, "cluster.server is no URL"},
		{"server: opaque", server("https:hush"), isInsecure, "cluster.server is no URL"},
		{"server: bad port", server("https://hush:hush"), isInsecure, "cluster.server is no URL"},
		{"server: bad escape", server("https://hush/%zz"), isInsecure, "cluster.server is no URL"},
		{"server: blank before", server(" https://hush"), isInsecure, "cluster.server is no URL"},
		{"server: user", server("https://hush@hush"), isInsecure, "cluster.server holds a user name"},
		{"server: password", server("https://hush:hush@hush"), isInsecure, "cluster.server holds a user name"},
		{"server: query", server("https://hush/?hush"), isInsecure, "cluster.server has a query"},
		{"server: empty query", server("https://hush/?"), isInsecure, "cluster.server has a query"},
		{"server: fragment", server("https://hush/#hush"), isInsecure, "cluster.server has a query"},
		{"server: empty fragment", server("https://hush/#"), isInsecure, "cluster.server has a query"},

		{"current-context: empty", func(k kubeConfig, _ cluster, _ user) { k.CurrentContext = "" }, isInvalid, "current-context is empty"},
		{"current-context: absent", func(k kubeConfig, _ cluster, _ user) { k.CurrentContext = "hush-absent" }, isInvalid, "current-context names no entry"},
		{"cluster: absent", func(k kubeConfig, _ cluster, _ user) { k.Contexts[0].Context.Cluster = "hush-absent" }, isInvalid, "the current context's cluster "},
		{"cluster: empty", func(k kubeConfig, _ cluster, _ user) { k.Contexts[0].Context.Cluster = "" }, isInvalid, "the current context's cluster "},
		{"user: absent", func(k kubeConfig, _ cluster, _ user) { k.Contexts[0].Context.AuthInfo = "hush-absent" }, isInvalid, "the current context's user "},
		{"user: empty", func(k kubeConfig, _ cluster, _ user) { k.Contexts[0].Context.AuthInfo = "" }, isInvalid, "the current context's user "},
		{"user: twice", func(k kubeConfig, _ cluster, _ user) { k.AuthInfos = append(k.AuthInfos, k.AuthInfos[0]) }, isInvalid, "the kubeconfig does not parse"},
		{"another kind", func(k kubeConfig, _ cluster, _ user) { k.Kind = "hush" }, isInvalid, "the kubeconfig does not parse"},
		{"too large", func(k kubeConfig, _ cluster, _ user) {
			k.Contexts[0].Context.Namespace = strings.Repeat(marker, maxKubeConfigBytes/4)
		}, isInvalid, "the kubeconfig is larger than 256 KiB"},

		{"CA: no PEM", func(_ kubeConfig, c cluster, _ user) { c.CertificateAuthorityData = []byte(marker) }, isInvalid, "cluster.certificate-authority-data "},
		{"CA: a key", func(_ kubeConfig, c cluster, _ user) { c.CertificateAuthorityData = kubeConfigCA.keyPEM }, isInvalid, "cluster.certificate-authority-data "},
		{"client certificate: no key", clientCert(kubeConfigClient.certPEM, nil), isInvalid, "user.client-key-data is empty"},
		{"client certificate: key only", clientCert(nil, kubeConfigClient.keyPEM), isInvalid, "user.client-certificate-data is empty"},
		{"client certificate: no PEM", clientCert([]byte(marker), []byte(marker)), isInvalid, "user.client-certificate-data and client-key-data are no pair"},
		{"client certificate: another's key", clientCert(kubeConfigClient.certPEM, kubeConfigCA.keyPEM), isInvalid, "user.client-certificate-data and client-key-data are no pair"},
		{"token: none", token(""), isInvalid, "user has no credentials"},
		{"token: line break", token("hush\n"), isInvalid, "user.token "},
		{"token: space", token("hush hush"), isInvalid, "user.token "},
		{"token: control character", token("hush\x01"), isInvalid, "user.token "},
		{"token: not ASCII", token("hush\u00e9"), isInvalid, "user.token "},
	}
}

func (r kubeConfigRow) yaml() []byte {
	config := &clientcmdv1.Config{
		CurrentContext: "hush-context",
		Contexts:       []clientcmdv1.NamedContext{{Name: "hush-context", Context: clientcmdv1.Context{Cluster: "hush-cluster", AuthInfo: "hush-user", Namespace: "hush"}}},
		Clusters:       []clientcmdv1.NamedCluster{{Name: "hush-cluster", Cluster: clientcmdv1.Cluster{Server: "https://hush.example:6443", CertificateAuthorityData: kubeConfigCA.certPEM}}},
		AuthInfos:      []clientcmdv1.NamedAuthInfo{{Name: "hush-user", AuthInfo: clientcmdv1.AuthInfo{Token: "hush-token"}}},
	}
	r.change(config, &config.Clusters[0].Cluster, &config.AuthInfos[0].AuthInfo)
	data, err := yaml.Marshal(config)
	if err != nil {
		panic(err)
	}
	return data
}

func TestParseKubeConfig(t *testing.T) {
	// What clientcmd and client-go take defaults from.
	t.Setenv("KUBECONFIG", "/hush")
	t.Setenv("KUBERNETES_MASTER", "https://hush-environment")
	t.Setenv("KUBERNETES_SERVICE_HOST", "hush-environment")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	t.Setenv("HTTPS_PROXY", "https://hush-environment")

	for _, row := range kubeConfigRows() {
		t.Run(row.name, func(t *testing.T) {
			cfg, err := ParseKubeConfig(row.yaml())
			if row.reason == "" {
				if err != nil {
					t.Fatal("refused:", err)
				}
				checkVetted(t, cfg)
				return
			}
			checkRefused(t, cfg, err, row.reason)
			if !strings.HasPrefix(err.Error(), row.field) {
				t.Errorf("message %q, want it to begin with %q", err, row.field)
			}
		})
	}
}

func TestParseKubeConfigTakesTheCurrentContext(t *testing.T) {
	for _, row := range kubeConfigRows()[:2] {
		got, err := ParseKubeConfig(row.yaml())
		if err != nil {
			t.Fatal(err)
		}
		want := &rest.Config{Host: "https://hush.example:6443", BearerToken: "hush-token"}
		want.CAData = kubeConfigCA.certPEM
		if row.name == "client certificate" {
			want.BearerToken, want.CertData, want.KeyData = "", kubeConfigClient.certPEM, kubeConfigClient.keyPEM
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", row.name, got, want)
		}
	}
}

func TestParseKubeConfigWithAnUnknownField(t *testing.T) {
	data := bytes.ReplaceAll(kubeConfigRows()[0].yaml(), []byte("    server:"), []byte("    insecure-skip-tls-verfy: true\n    server:"))
	if !bytes.Contains(data, []byte("verfy")) {
		t.Fatal("the kubeconfig has no unknown field")
	}
	cfg, err := ParseKubeConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	checkVetted(t, cfg)
}

var garbage = []string{
	"", "\n", "hush", "{", "[]", "null", "\x00", "hush: [", "kind: Hush", "apiVersion: hush/v2\nkind: Config",
	"clusters: hush", "users:\n- null\n", "contexts: [{name: '', context: {}}]", "users: [{user: {client-key-data: '!hush'}}]",
	"a: &a [hush,hush]\nb: &b [*a,*a,*a,*a]\nc: [*b,*b,*b,*b]",
	"current-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nclusters: [{name: a}]\nusers: [{name: a}]",
}

func TestParseKubeConfigOfGarbage(t *testing.T) {
	for _, text := range garbage {
		cfg, err := ParseKubeConfig([]byte(text))
		var refused *KubeConfigError
		if !errors.As(err, &refused) {
			t.Fatalf("%q: got %v", text, err)
		}
		checkRefused(t, cfg, err, refused.Reason)
	}
}

func FuzzParseKubeConfig(f *testing.F) {
	for _, row := range kubeConfigRows() {
		if data := row.yaml(); len(data) <= maxKubeConfigBytes {
			f.Add(data)
		}
	}
	for _, text := range garbage {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := ParseKubeConfig(data)
		if err == nil {
			checkVetted(t, cfg)
			return
		}
		var refused *KubeConfigError
		if !errors.As(err, &refused) {
			t.Fatalf("the error is a %T", err)
		}
	})
}

// checkVetted fails where a config holds anything but an https server, TLS data and a token.
func checkVetted(t *testing.T, cfg *rest.Config) {
	t.Helper()
	rest := *cfg
	server, err := url.Parse(rest.Host)
	if err != nil || server.Scheme != "https" || server.Hostname() == "" || server.User != nil {
		t.Errorf("the server is %q", rest.Host)
	}
	rest.Host, rest.BearerToken, rest.DisableCompression = "", "", false
	rest.ServerName, rest.CAData, rest.CertData, rest.KeyData = "", nil, nil, nil
	if !reflect.ValueOf(rest).IsZero() {
		t.Errorf("the config holds more than a server and inline credentials: %v", &rest)
	}
}

// checkRefused fails where an error is not a refusal for the reason, or tells something of the kubeconfig.
func checkRefused(t *testing.T, cfg *rest.Config, err error, reason string) {
	t.Helper()
	var refused *KubeConfigError
	if cfg != nil || !errors.As(err, &refused) || refused.Reason != reason {
		t.Fatalf("got %v and error %#v, want reason %s", cfg, err, reason)
	}
	if refused.Message == "" || strings.Contains(refused.Message, marker) ||
		strings.Contains(refused.Message, base64.StdEncoding.EncodeToString([]byte(marker))) {
		t.Errorf("message %q", refused.Message)
	}
}

// certificate is a certificate with its key.
type certificate struct {
	cert            *x509.Certificate
	key             *ecdsa.PrivateKey
	certPEM, keyPEM []byte
}

// issue makes a certificate for 127.0.0.1, signed by parent, or by itself if that is nil.
func issue(parent *certificate, change func(*x509.Certificate)) *certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:        parent == nil, BasicConstraintsValid: true,
	}
	if change != nil {
		change(template)
	}
	if parent == nil {
		parent = &certificate{cert: template, key: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.cert, key.Public(), parent.key)
	if err != nil {
		panic(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		panic(err)
	}
	return &certificate{
		cert: cert, key: key,
		certPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		keyPEM:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
	}
}
