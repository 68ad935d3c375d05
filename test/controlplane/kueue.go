package controlplane

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	componentconfigv1alpha1 "k8s.io/component-base/config/v1alpha1"
	"k8s.io/utils/ptr"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/dispatch-dev/dispatch/test/controlplane/binaries"
)

// Names in Kueue's own manifests.
const (
	kueueNamespace      = "kueue-system"
	kueueServiceAccount = "kueue-controller-manager"
	kueueConfigMap      = "kueue-manager-config"
	kueueWebhookService = "kueue-webhook-service"
	kueueWebhookSecret  = "kueue-webhook-server-cert"
	kueueCAName         = "kueue-ca" // with another, Kueue would make new certificates
)

// startKueue installs Kueue with its own manifests and runs it outside a pod,
// with the rights of its own ServiceAccount.
func (c *Cluster) startKueue(ctx context.Context) error {
	port, err := c.port()
	if err != nil {
		return err
	}
	objects, err := readManifests(c.files[binaries.KueueManifests])
	if err != nil {
		return err
	}
	config, err := c.kueueConfig(objects, port)
	if err != nil {
		return err
	}
	objects, err = outsideAPod(objects, port)
	if err != nil {
		return err
	}
	if err := c.mountKueueCertificates(objects); err != nil {
		return fmt.Errorf("making Kueue's certificates: %w", err)
	}
	if err := c.applyObjects(ctx, objects); err != nil {
		return err
	}

	account, err := c.ServiceAccountConfig(ctx, kueueNamespace, kueueServiceAccount)
	if err != nil {
		return err
	}
	kubeconfig, err := Kubeconfig(account)
	if err != nil {
		return err
	}
	kubeconfigPath, err := c.write("kueue.kubeconfig", kubeconfig)
	if err != nil {
		return err
	}
	configPath, err := c.write("kueue.yaml", config)
	if err != nil {
		return err
	}
	c.Kueue = c.component(binaries.Kueue, c.kueueReady,
		"--kubeconfig="+kubeconfigPath,
		"--config="+configPath,
		"--zap-log-level=2", // as in Kueue's Deployment
	)
	return c.Kueue.Start(ctx)
}

// kueueConfig is the configuration in Kueue's manifests, adapted.
func (c *Cluster) kueueConfig(objects []unstructured.Unstructured, port int) ([]byte, error) {
	var config kueueconfig.Configuration
	for _, object := range objects {
		if object.GetKind() != "ConfigMap" || object.GetName() != kueueConfigMap {
			continue
		}
		text, _, err := unstructured.NestedString(object.Object, "data", "controller_manager_config.yaml")
		if err != nil {
			return nil, err
		}
		if err := yaml.UnmarshalStrict([]byte(text), &config); err != nil {
			return nil, fmt.Errorf("reading Kueue's own configuration: %w", err)
		}
	}
	if config.Kind == "" {
		return nil, fmt.Errorf("no configuration in Kueue's ConfigMap %s", kueueConfigMap)
	}
	config.Webhook.Port = ptr.To(port)
	config.Webhook.CertDir = c.kueueCertDir()
	config.InternalCertManagement = &kueueconfig.InternalCertManagement{Enable: ptr.To(true)}
	config.Metrics.BindAddress = "0"
	config.Health.HealthProbeBindAddress = "0"
	// It is alone, and would wait for its predecessor's lease after a kill.
	config.LeaderElection = &componentconfigv1alpha1.LeaderElectionConfiguration{LeaderElect: ptr.To(false)}
	// This server would need an APIService that leads to this process.
	config.FeatureGates = map[string]bool{"VisibilityOnDemand": false}
	// Most of the others wait for the types of projects that are not installed.
	config.Integrations = &kueueconfig.Integrations{Frameworks: []string{"batch/job"}}
	if c.options.ConfigureKueue != nil {
		c.options.ConfigureKueue(&config)
	}
	return yaml.Marshal(config)
}

func (c *Cluster) kueueCertDir() string { return filepath.Join(c.dir, "kueue-certificates") }

// outsideAPod leaves out what only serves Kueue as a pod, and leads the API
// server to a Kueue on this machine: it connects to an ExternalName service as
// it is, on the port that the webhook names, and still verifies the
// certificate for the service's name.
func outsideAPod(objects []unstructured.Unstructured, port int) ([]unstructured.Unstructured, error) {
	var kept []unstructured.Unstructured
	for _, object := range objects {
		var err error
		switch object.GetKind() {
		case "Deployment", "APIService":
			continue
		case "Service":
			if object.GetName() != kueueWebhookService {
				continue
			}
			err = unstructured.SetNestedMap(object.Object, map[string]any{
				"type":         string(corev1.ServiceTypeExternalName),
				"externalName": "localhost",
			}, "spec")
		case "CustomResourceDefinition":
			const conversion = "conversion"
			if _, found, _ := unstructured.NestedMap(object.Object, "spec", conversion); found {
				err = unstructured.SetNestedField(object.Object, int64(port),
					"spec", conversion, "webhook", "clientConfig", "service", "port")
			}
		case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
			err = setWebhookPorts(object.Object, port)
		}
		if err != nil {
			return nil, fmt.Errorf("adapting %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		kept = append(kept, object)
	}
	return kept, nil
}

func setWebhookPorts(configuration map[string]any, port int) error {
	webhooks, _, err := unstructured.NestedSlice(configuration, "webhooks")
	if err != nil {
		return err
	}
	for _, webhook := range webhooks {
		fields, ok := webhook.(map[string]any)
		if !ok {
			return errors.New("a webhook is not an object")
		}
		err := unstructured.SetNestedField(fields, int64(port), "clientConfig", "service", "port")
		if err != nil {
			return err
		}
	}
	return unstructured.SetNestedSlice(configuration, webhooks, "webhooks")
}

// kueueReady goes through all that has to work with a dry run: the conversion from an older version, the
// mutating and the validating webhook.
func (c *Cluster) kueueReady(ctx context.Context) error {
	const probe = `{"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue", "metadata": {"name": "readiness-probe"}}`
	return c.client.Discovery().RESTClient().Post().
		AbsPath("/apis/kueue.x-k8s.io/v1beta1/clusterqueues").
		Param("dryRun", metav1.DryRunAll).
		SetHeader("Content-Type", "application/json").
		Body([]byte(probe)).
		Do(ctx).Error()
}

// mountKueueCertificates fills the Secret with certificates that Kueue would make at its first start, by the
// package that Kueue makes them with, and does what a kubelet would: it mounts them. Kueue waits for the mount,
// and looks for it after 1, 2, 4 and more seconds, so that having it there from the start saves most of its
// start.
func (c *Cluster) mountKueueCertificates(objects []unstructured.Unstructured) error {
	rotation := rotator.CertRotator{
		CAName: kueueCAName, CAOrganization: "kueue",
		DNSName:      kueueWebhookService + "." + kueueNamespace + ".svc",
		ExtKeyUsages: &[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	// Beyond the 90 days before the end at which Kueue would make new ones.
	begin, end := time.Now().Add(-time.Hour), time.Now().AddDate(1, 0, 0)
	ca, err := rotation.CreateCACert(begin, end)
	if err != nil {
		return err
	}
	cert, key, err := rotation.CreateCertPEM(ca, begin, end)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.kueueCertDir(), 0o700); err != nil {
		return err
	}
	data := map[string]any{}
	for name, content := range map[string][]byte{"ca.crt": ca.CertPEM, "ca.key": ca.KeyPEM, "tls.crt": cert, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(c.kueueCertDir(), name), content, 0o600); err != nil {
			return err
		}
		data[name] = base64.StdEncoding.EncodeToString(content)
	}
	for _, object := range objects {
		if object.GetKind() == "Secret" && object.GetName() == kueueWebhookSecret {
			return unstructured.SetNestedMap(object.Object, data, "data")
		}
	}
	return fmt.Errorf("no Secret %s in Kueue's manifests", kueueWebhookSecret)
}

func readManifests(path string) ([]unstructured.Unstructured, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	var objects []unstructured.Unstructured
	for {
		var object unstructured.Unstructured
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		objects = append(objects, object)
	}
}

func (c *Cluster) applyObjects(ctx context.Context, objects []unstructured.Unstructured) error {
	var manifests bytes.Buffer
	for _, object := range objects {
		data, err := object.MarshalJSON()
		if err != nil {
			return err
		}
		manifests.WriteString("---\n")
		manifests.Write(data)
	}
	return c.ApplyYAML(ctx, manifests.Bytes())
}
