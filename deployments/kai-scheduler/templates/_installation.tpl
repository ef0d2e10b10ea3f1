{{- /*
The installation directory: objects of custom kinds, which can't be chart objects because the program creates their CRDs.
apply-*: the program applies them at every start. create-*: the program creates those that are missing at the first start.
Config and shard contain only values that differ from the defaults, so that an administrator's own changes to other fields stay.
*/ -}}

{{- define "kai.installation" -}}
apply-config.yaml: |
  {{- include "kai.config" . | nindent 2 }}
{{- if .Values.defaultShard.enabled }}
apply-shard.yaml: |
  {{- include "kai.shard" . | nindent 2 }}
{{- end }}
create-priority-classes.yaml: |
  {{- include "kai.priorityClasses" . | nindent 2 }}
{{- if .Values.defaultQueue.createDefaultQueue }}
create-queues.yaml: |
  {{- include "kai.queues" . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "kai.config" -}}
{{- $global := dict }}
{{- $keys := list "namespaceLabelSelector" "podLabelSelector" }}
{{- /* In mode all-in-one the Deployment of the chart has these settings, and the Config would call them without effect. */ -}}
{{- if eq .Values.mode "roles" }}
{{- $keys = concat $keys (list "affinity" "securityContext" "nodeSelector" "tolerations" "priorityClassName" "requireDefaultPodAntiAffinityTerm" "jsonLog") }}
{{- end }}
{{- range $key := $keys }}
{{- with get $.Values.global $key }}{{ $_ := set $global $key . }}{{ end }}
{{- end }}
{{- with .Values.global.nodePoolLabelKey }}{{ $_ := set $global "nodePoolLabelKey" . }}{{ end }}
{{- if ne .Values.podgrouper.queueLabelKey "kai.scheduler/queue" }}{{ $_ := set $global "queueLabelKey" .Values.podgrouper.queueLabelKey }}{{ end }}
{{- if .Values.openshift }}{{ $_ := set $global "openshift" true }}{{ end }}
{{- $_ := set $global "gpuSharingMode" (include "kai.gpuSharingMode" .) }}
{{- if .Values.global.vpa.enabled }}{{ $_ := set $global "vpa" .Values.global.vpa }}{{ end }}
{{- with include "kai.pullSecretNames" . | fromJsonArray }}{{ $_ := set $global "additionalImagePullSecrets" . }}{{ end }}
{{- if gt (int .Values.operator.replicaCount) 1 }}{{ $_ := set $global "replicaCount" (int .Values.operator.replicaCount) }}{{ end }}

{{- $binder := include "kai.component" (dict "root" . "values" .Values.binder) | fromYaml }}
{{- $_ := set $binder "resourceReservation" (include "kai.configReservation" . | fromYaml) }}
{{- with .Values.binder.plugins }}{{ $_ := set $binder "plugins" . }}{{ end }}
{{- if kindIs "bool" .Values.binder.cdiEnabled }}{{ $_ := set $binder "cdiEnabled" .Values.binder.cdiEnabled }}{{ end }}
{{- if ne (int .Values.binder.ports.metricsPort) 8080 }}{{ $_ := set $binder "metricsPort" (int .Values.binder.ports.metricsPort) }}{{ end }}

{{- $admission := include "kai.component" (dict "root" . "values" .Values.admission) | fromYaml }}
{{- if .Values.global.blockNvidiaVisibleDevices }}{{ $_ := set $admission "blockNvidiaVisibleDevices" true }}{{ end }}
{{- /* Admission sets the class nvidia only where it exists if the Config does not name it. */ -}}
{{- if ne (toString .Values.admission.gpuFractionRuntimeClassName) "nvidia" }}{{ $_ := set $admission "gpuFractionRuntimeClassName" .Values.admission.gpuFractionRuntimeClassName }}{{ end }}
{{- with .Values.admission.gpuPodRuntimeClassName }}{{ $_ := set $admission "gpuPodRuntimeClassName" . }}{{ end }}
{{- $ports := .Values.admission.ports }}
{{- $webhook := dict }}
{{- if ne (int $ports.webhookPort) 9443 }}{{ $_ := set $webhook "targetPort" (int $ports.webhookPort) }}{{ end }}
{{- if ne (int $ports.metricsPort) 8080 }}{{ $_ := set $webhook "metricsPort" (int $ports.metricsPort) }}{{ end }}
{{- if ne (int $ports.probePort) 8081 }}{{ $_ := set $webhook "probePort" (int $ports.probePort) }}{{ end }}
{{- with $webhook }}{{ $_ := set $admission "webhook" . }}{{ end }}
{{- $resize := dict }}
{{- if not .Values.admission.inPlacePodResize.validateQuota }}{{ $_ := set $resize "validateQuota" false }}{{ end }}
{{- if .Values.admission.inPlacePodResize.blockUpsizeOnBoundedQueues }}{{ $_ := set $resize "blockUpsizeOnBoundedQueues" true }}{{ end }}
{{- with $resize }}{{ $_ := set $admission "inPlacePodResize" . }}{{ end }}

{{- $scheduler := include "kai.component" (dict "root" . "values" .Values.scheduler) | fromYaml }}
{{- if ne (int .Values.scheduler.ports.metricsPort) 8080 }}{{ $_ := set $scheduler "schedulerService" (dict "port" (int .Values.scheduler.ports.metricsPort)) }}{{ end }}

{{- $namespace := eq .Values.mode "roles" | ternary .Release.Namespace "" }}
{{- $spec := dict "namespace" $namespace "global" $global "binder" $binder "admission" $admission "scheduler" $scheduler }}
{{- $podGrouper := include "kai.component" (dict "root" . "values" .Values.podgrouper) | fromYaml }}
{{- with .Values.podgrouper.args }}{{ $_ := set $podGrouper "args" . }}{{ end }}
{{- $_ := set $spec "podGrouper" $podGrouper }}
{{- $_ := set $spec "podGroupController" (include "kai.component" (dict "root" . "values" .Values.podgroupcontroller) | fromYaml) }}
{{- $queues := include "kai.component" (dict "root" . "values" .Values.queuecontroller) | fromYaml }}
{{- if ne .Values.queuecontroller.enforceQuotaViolation "Warning" }}{{ $_ := set $queues "enforceQuotaViolation" .Values.queuecontroller.enforceQuotaViolation }}{{ end }}
{{- $_ := set $spec "queueController" $queues }}
{{- if include "kai.scalesNodes" . }}
{{- $values := merge (dict "enabled" true) .Values.nodescaleadjuster }}
{{- $adjuster := include "kai.component" (dict "root" . "values" $values) | fromYaml }}
{{- $_ := set $adjuster "service" (merge (dict "enabled" true) ($adjuster.service | default dict)) }}
{{- $args := dict "scalingPodImage" (include "kai.configImage" (dict "root" . "image" $values.scalingPodImage) | fromYaml) }}
{{- if ne $values.scalingPodNamespace "kai-scale-adjust" }}{{ $_ := set $args "nodeScaleNamespace" $values.scalingPodNamespace }}{{ end }}
{{- $_ := set $adjuster "args" $args }}
{{- $_ := set $spec "nodeScaleAdjuster" $adjuster }}
{{- end }}
{{- with .Values.prometheus.externalPrometheusUrl }}{{ $_ := set $spec "prometheus" (dict "externalPrometheusUrl" .) }}{{ end }}
{{- range $key, $value := $spec }}
{{- if not $value }}{{ $_ := unset $spec $key }}{{ end }}
{{- end }}
{{- toYaml (dict "apiVersion" "kai.scheduler/v1" "kind" "Config" "metadata" (dict "name" "kai-config") "spec" $spec) }}
{{- end }}

{{- /* A component of the Config. In mode all-in-one only the switch has an effect. Takes (dict "root" $ "values" VALUES). */ -}}
{{- define "kai.component" -}}
{{- $service := dict }}
{{- if not .values.enabled }}{{ $_ := set $service "enabled" false }}{{ end }}
{{- if eq .root.Values.mode "roles" }}
{{- $_ := set $service "image" (include "kai.configImage" (dict "root" .root "image" .values.image) | fromYaml) }}
{{- range $key := list "resources" "affinity" "podDisruptionBudget" }}
{{- with get $.values $key }}{{ $_ := set $service $key . }}{{ end }}
{{- end }}
{{- end }}
{{- toYaml (empty $service | ternary dict (dict "service" $service)) }}
{{- end }}

{{- define "kai.configReservation" -}}
{{- $values := .Values.global.resourceReservation }}
{{- $reservation := dict "image" (include "kai.configImage" (dict "root" . "image" .Values.binder.resourceReservationImage) | fromYaml) }}
{{- range $key, $value := dict "namespace" $values.namespace "serviceAccountName" $values.serviceAccount "appLabel" $values.appLabel }}
{{- if ne $value "kai-resource-reservation" }}{{ $_ := set $reservation $key $value }}{{ end }}
{{- end }}
{{- with .Values.binder.runtimeClassName }}{{ $_ := set $reservation "runtimeClassName" . }}{{ end }}
{{- with .Values.binder.resourceReservationPodResources }}{{ $_ := set $reservation "podResources" . }}{{ end }}
{{- toYaml $reservation }}
{{- end }}

{{- define "kai.shard" -}}
{{- $spec := dict }}
{{- $args := include "kai.schedulerArgs" . | fromJson }}
{{- if eq .Values.mode "all-in-one" }}
{{- /* The Deployment has the flags of the log. */ -}}
{{- range $key := keys $args }}
{{- if include "kai.isLogFlag" $key }}{{ $_ := unset $args $key }}{{ end }}
{{- end }}
{{- else if and .Values.ui.enabled (not (hasKey $args "ui-address")) }}
{{- $_ := set $args "ui-address" (printf ":%d" (int .Values.ui.port)) }}
{{- end }}
{{- with $args }}{{ $_ := set $spec "args" . }}{{ end }}
{{- if ne .Values.scheduler.placementStrategy "binpack" }}
{{- $_ := set $spec "placementStrategy" (dict "gpu" .Values.scheduler.placementStrategy "cpu" .Values.scheduler.placementStrategy) }}
{{- end }}
{{- range $key := list "plugins" "actions" "scenarioSearchBudgets" }}
{{- with get $.Values.scheduler $key }}{{ $_ := set $spec $key . }}{{ end }}
{{- end }}
{{- toYaml (dict "apiVersion" "kai.scheduler/v1" "kind" "SchedulingShard" "metadata" (dict "name" "default") "spec" $spec) }}
{{- end }}

{{- /* files/priority-classes.yaml is a copy of deploy/priority-classes.yaml. Reservation pods need theirs in any case. */ -}}
{{- define "kai.priorityClasses" -}}
{{- $documents := list }}
{{- range splitList "\n---\n" (.Files.Get "files/priority-classes.yaml") }}
{{- $class := fromYaml . }}
{{- if $class }}
{{- if or $.Values.defaultPriorityClasses.enabled (eq $class.metadata.name "kai-resource-reservation") }}
{{- $documents = append $documents (toYaml $class) }}
{{- end }}
{{- end }}
{{- end }}
{{- join "\n---\n" $documents }}
{{- end }}

{{- define "kai.queues" -}}
{{- with .Values.defaultQueue }}
{{- toYaml (dict "apiVersion" "scheduling.run.ai/v2" "kind" "Queue" "metadata" (dict "name" .parentName) "spec" (dict "resources" .parentResources)) }}
---
{{ toYaml (dict "apiVersion" "scheduling.run.ai/v2" "kind" "Queue" "metadata" (dict "name" .childName) "spec" (dict "parentQueue" .parentName "resources" .childResources)) }}
{{- end }}
{{- end }}
