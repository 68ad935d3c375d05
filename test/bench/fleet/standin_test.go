package fleet

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	restwatch "k8s.io/client-go/rest/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/install"
)

// standin plays the API servers of many targets on one port, each below a path of its own. It serves what
// preflight asks for, in JSON and protobuf over HTTP/2 and TLS as a real one does, and nothing else. Only
// the Leases change.
type standin struct {
	*http.ServeMux
	ca       []byte
	address  string
	clusters []*standinCluster
	stop     func()
	renewed  atomic.Int64
}

// standinCluster is one of them.
type standinCluster struct {
	queue     *kueue.ClusterQueue
	check     *kueue.AdmissionCheck
	namespace *corev1.Namespace

	mu    sync.Mutex
	lease *coordinationv1.Lease // replaced, never changed
	// renewed is closed when lease is replaced.
	renewed chan struct{}
}

const queueName, checkName, leaseName = "gpu", v1alpha1.DefaultAdmissionCheck, "dispatch-admission"

func newStandin(b *testing.B, targets int) *standin {
	b.Helper()
	certificate, ca, err := selfSigned()
	if err != nil {
		b.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := &standin{ServeMux: http.NewServeMux(), ca: ca, address: "https://" + listener.Addr().String()}
	for range targets {
		s.clusters = append(s.clusters, newStandinCluster())
	}
	s.handle("/version", func(_ *standinCluster, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		_ = json.NewEncoder(w).Encode(version.Info{Major: "1", Minor: "37", GitVersion: "v1.37.2"}) // the client notices
	})
	s.handle("/api/v1/namespaces/kube-system", func(c *standinCluster, w http.ResponseWriter, r *http.Request) { answer(w, r, c.namespace) })
	s.serve("/apis/kueue.x-k8s.io/v1beta2/clusterqueues", queueName, func(c *standinCluster) (client.Object, <-chan struct{}) { return c.queue, nil })
	s.serve("/apis/kueue.x-k8s.io/v1beta2/admissionchecks", checkName, func(c *standinCluster) (client.Object, <-chan struct{}) { return c.check, nil })
	s.serve("/apis/coordination.k8s.io/v1/namespaces/"+install.Namespace+"/leases", leaseName, func(c *standinCluster) (client.Object, <-chan struct{}) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.lease, c.renewed
	})
	server := &http.Server{
		Handler: s, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		ErrorLog: log.New(io.Discard, "", 0), // of connections that a client ends
	}
	go func() { _ = server.ServeTLS(listener, "", "") }() // ends with the listener
	b.Cleanup(func() { _ = server.Close() })
	s.revive()
	b.Cleanup(func() { s.stop() })
	return s
}

func newStandinCluster() *standinCluster {
	c := &standinCluster{
		queue: clusterQueue(queueName, checkName), check: admissionCheck(checkName), lease: lease(install.Namespace, leaseName, time.Now()),
		namespace: &corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem},
		},
		renewed: make(chan struct{}),
	}
	for _, object := range []client.Object{c.queue, c.check, c.lease, c.namespace} {
		object.SetUID(uuid.NewUUID())
		object.SetResourceVersion("1000")
		object.SetCreationTimestamp(metav1.Now())
	}
	// As a real one has, since it is decoded with every renewal.
	c.lease.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: leaseName, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "coordination.k8s.io/v1",
		Time: ptr.To(metav1.Now()), FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:acquireTime":{},"f:holderIdentity":{},"f:leaseDurationSeconds":{},"f:leaseTransitions":{},"f:renewTime":{}}}`),
	}}
	return c
}

func (c *standinCluster) renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.lease.DeepCopy()
	next.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.Now().Truncate(time.Microsecond)))
	revision, _ := strconv.Atoi(next.ResourceVersion) // it is our own
	next.ResourceVersion = strconv.Itoa(revision + 1)
	c.lease = next
	close(c.renewed)
	c.renewed = make(chan struct{})
}

func (s *standin) targets() ([]target, error) {
	targets := make([]target, len(s.clusters))
	for i := range targets {
		kubeConfig, err := controlplane.Kubeconfig(&rest.Config{
			Host: fmt.Sprintf("%s/%d", s.address, i), BearerToken: string(uuid.NewUUID()),
			TLSClientConfig: rest.TLSClientConfig{CAData: s.ca},
		})
		if err != nil {
			return nil, err
		}
		targets[i] = target{Name: fmt.Sprintf("standin-%04d", i), KubeConfig: kubeConfig, Kueue: v1alpha1.KueueSpec{
			ClusterQueue: queueName, AdmissionCheck: checkName,
			AdmissionLease: &v1alpha1.LeaseReference{Namespace: install.Namespace, Name: leaseName},
		}}
	}
	return targets, nil
}

// revive renews all Leases in turn, from one goroutine.
func (s *standin) revive() {
	stop, stopped := make(chan struct{}), make(chan struct{})
	s.stop = sync.OnceFunc(func() { close(stop); <-stopped })
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(renewPeriod / time.Duration(len(s.clusters)))
		defer ticker.Stop()
		began, done := time.Now(), 0
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
			}
			// A ticker drops ticks on a busy machine.
			for due := int(time.Since(began) * time.Duration(len(s.clusters)) / renewPeriod); done < due; done++ {
				s.clusters[done%len(s.clusters)].renew()
				s.renewed.Add(1)
			}
		}
	}()
}

func (s *standin) kill() { s.stop() }

func (s *standin) renewals() int64 { return s.renewed.Load() }

func (s *standin) lastRenewal(i int) time.Time { return s.clusters[i].lease.Spec.RenewTime.Time }

func (s *standin) handle(path string, do func(*standinCluster, http.ResponseWriter, *http.Request)) {
	s.HandleFunc("GET /{cluster}"+path, func(w http.ResponseWriter, r *http.Request) {
		i, err := strconv.Atoi(r.PathValue("cluster"))
		if err != nil || i < 0 || i >= len(s.clusters) {
			http.NotFound(w, r)
			return
		}
		do(s.clusters[i], w, r)
	})
}

// serve serves GET and watch of the one object of a kind that there is. current gives it, and a channel
// that is closed when there is a newer one.
func (s *standin) serve(path, name string, current func(*standinCluster) (client.Object, <-chan struct{})) {
	s.handle(path+"/"+name, func(c *standinCluster, w http.ResponseWriter, r *http.Request) {
		object, _ := current(c)
		answer(w, r, object)
	})
	s.handle(path, func(c *standinCluster, w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if query.Get("watch") != "true" || query.Get("fieldSelector") != "metadata.name="+name {
			http.Error(w, "only a watch of the one object is served", http.StatusMethodNotAllowed)
			return
		}
		encode := startWatch(w, r, current, c)
		seen := query.Get("resourceVersion")
		for {
			object, changed := current(c)
			if object.GetResourceVersion() != seen {
				seen = object.GetResourceVersion()
				if err := encode(object); err != nil {
					return
				}
			}
			select {
			case <-r.Context().Done():
				return
			case <-changed:
			}
		}
	})
}

var codecs = serializer.NewCodecFactory(scheme)

// negotiate gives the type that the client asks for. Custom resources are never in protobuf.
func negotiate(r *http.Request, object runtime.Object) runtime.SerializerInfo {
	mediaType := runtime.ContentTypeJSON
	if _, ok := object.(interface{ Marshal() ([]byte, error) }); ok && strings.Contains(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		mediaType = runtime.ContentTypeProtobuf
	}
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
	return info
}

func encoderFor(s runtime.Serializer, object runtime.Object) runtime.Encoder {
	return codecs.EncoderForVersion(s, object.GetObjectKind().GroupVersionKind().GroupVersion())
}

func answer(w http.ResponseWriter, r *http.Request, object client.Object) {
	info := negotiate(r, object)
	w.Header().Set("Content-Type", info.MediaType)
	_ = encoderFor(info.Serializer, object).Encode(object, w) // the client notices
}

func startWatch(w http.ResponseWriter, r *http.Request, current func(*standinCluster) (client.Object, <-chan struct{}), c *standinCluster) func(client.Object) error {
	object, _ := current(c)
	info := negotiate(r, object)
	stream := info.StreamSerializer
	contentType := info.MediaType
	if contentType == runtime.ContentTypeProtobuf {
		contentType += ";stream=watch"
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	_ = flush() // so that the client knows that it stands
	encoder := restwatch.NewEncoder(
		streaming.NewEncoder(stream.NewFrameWriter(w), codecs.EncoderForVersion(stream.Serializer, metav1.SchemeGroupVersion)),
		encoderFor(info.Serializer, object))
	return func(object client.Object) error {
		if err := encoder.Encode(&watch.Event{Type: watch.Modified, Object: object}); err != nil {
			return err
		}
		return flush()
	}
}

// selfSigned gives a certificate for this machine that is its own CA.
func selfSigned() (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
