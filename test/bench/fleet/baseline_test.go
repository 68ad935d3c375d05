package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/test/controlplane"
)

// The baseline is this test's own program, started once more. It reads and watches the same three objects
// of each target with client-go's REST client, and drops what it gets: no cache, no verdict, no hub. Like
// dispatch-manager it gives each target a client, a transport and so a connection of its own, and asks for
// Leases in protobuf.

// allWatch is what it prints once every watch stands.
const allWatch = "all watches stand"

func newBaseline(b *testing.B, folder string, targets []target) *controlplane.Component {
	b.Helper()
	data, err := json.Marshal(targets)
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(folder, "targets.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		b.Fatal(err)
	}
	var process *controlplane.Component
	ready := func(context.Context) error {
		text, err := os.ReadFile(process.LogPath())
		if err == nil && !bytes.Contains(text, []byte(allWatch)) {
			err = errors.New("not all watches stand yet")
		}
		return err
	}
	process = controlplane.NewComponent("baseline", os.Args[0], []string{"-fleet.baseline=" + path}, folder, ready)
	if err := os.RemoveAll(process.LogPath()); err != nil { // an earlier run's
		b.Fatal(err)
	}
	return process
}

func runBaseline(ctx context.Context, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var targets []target
	if err := json.Unmarshal(data, &targets); err != nil {
		return err
	}
	var pending sync.WaitGroup
	for _, t := range targets {
		config, err := clientcmd.RESTConfigFromKubeConfig(t.KubeConfig)
		if err != nil {
			return err
		}
		config.QPS = -1
		// client-go shares a transport among configs that look alike, unless they dial differently.
		config.Dial = (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext
		httpClient, err := rest.HTTPClientFor(config)
		if err != nil {
			return err
		}
		queues, err := restClient(config, httpClient, kueue.SchemeGroupVersion, runtime.ContentTypeJSON)
		if err != nil {
			return err
		}
		leases, err := restClient(config, httpClient, coordinationv1.SchemeGroupVersion, runtime.ContentTypeProtobuf)
		if err != nil {
			return err
		}
		pending.Add(3)
		go watchOne(ctx, queues, "", "clusterqueues", t.Kueue.ClusterQueue, &kueue.ClusterQueue{}, pending.Done)
		go watchOne(ctx, queues, "", "admissionchecks", t.Kueue.AdmissionCheck, &kueue.AdmissionCheck{}, pending.Done)
		go watchOne(ctx, leases, t.Kueue.AdmissionLease.Namespace, "leases", t.Kueue.AdmissionLease.Name, &coordinationv1.Lease{}, pending.Done)
	}
	pending.Wait()
	fmt.Println(allWatch)
	<-ctx.Done()
	return ctx.Err()
}

func restClient(config *rest.Config, httpClient *http.Client, gv schema.GroupVersion, contentType string) (*rest.RESTClient, error) {
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion, config.NegotiatedSerializer = "/apis", &gv, codecs.WithoutConversion()
	config.ContentType = contentType
	return rest.RESTClientForConfigAndClient(config, httpClient)
}

// watchOne reads and watches one object for ever. stands is called when it first watches.
func watchOne(ctx context.Context, c rest.Interface, namespace, resource, name string, object client.Object, stands func()) {
	stands = sync.OnceFunc(stands)
	for ; ; time.Sleep(time.Second) { // the pause is for after a failure or an end
		if err := c.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Name(name).Do(ctx).Into(object); err != nil {
			fmt.Println(err)
			continue
		}
		stream, err := c.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).VersionedParams(&metav1.ListOptions{
			Watch:           true,
			FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
			ResourceVersion: object.GetResourceVersion(),
		}, metav1.ParameterCodec).Watch(ctx)
		if err != nil {
			fmt.Println(err)
			continue
		}
		stands()
		for range stream.ResultChan() {
		}
	}
}
