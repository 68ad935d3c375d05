package prometheus

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"testing"

	. "github.com/onsi/gomega"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// objects are those of the kinds asked for, in what kustomize made. A field that such a kind does not have is an error.
func objects(g *WithT, manifests []byte, kinds map[string]any) {
	decoder := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifests)))
	for {
		document, err := decoder.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		g.Expect(err).NotTo(HaveOccurred())
		var meta metav1.TypeMeta
		g.Expect(yaml.Unmarshal(document, &meta)).To(Succeed())
		if into, ok := kinds[meta.Kind]; ok {
			g.Expect(yaml.UnmarshalStrict(document, into)).To(Succeed())
		}
	}
}

func TestServiceMonitorsFindEveryReplica(t *testing.T) {
	for _, component := range components {
		t.Run(component, func(t *testing.T) {
			g := NewWithT(t)
			deployment := &appsv1.Deployment{}
			manifests, err := render(t.Context(), component)
			g.Expect(err).NotTo(HaveOccurred())
			objects(g, manifests, map[string]any{"Deployment": deployment})
			service, monitor, rule := &corev1.Service{}, &monitoringv1.ServiceMonitor{}, &monitoringv1.PrometheusRule{}
			manifests, err = render(t.Context(), "prometheus/"+component)
			g.Expect(err).NotTo(HaveOccurred())
			objects(g, manifests, map[string]any{"Service": service, "ServiceMonitor": monitor, "PrometheusRule": rule})

			for _, object := range []metav1.Object{service, monitor, rule} {
				g.Expect(object.GetNamespace()).To(Equal(deployment.Namespace))
			}
			selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(selector.Empty()).To(BeFalse())
			g.Expect(selector.Matches(labels.Set(service.Labels))).To(BeTrue())
			g.Expect(service.Spec.Selector).NotTo(BeEmpty())
			g.Expect(labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(deployment.Spec.Template.Labels))).To(BeTrue())
			g.Expect(monitor.Spec.Endpoints).To(ConsistOf(HaveField("Port", service.Spec.Ports[0].Name)))
			g.Expect(deployment.Spec.Template.Spec.Containers[0].Ports).To(ContainElement(And(
				HaveField("Name", service.Spec.Ports[0].TargetPort.StrVal),
				HaveField("ContainerPort", service.Spec.Ports[0].Port))))
		})
	}
}
