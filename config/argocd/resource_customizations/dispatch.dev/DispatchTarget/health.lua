local conditions = {}
if obj.status ~= nil and obj.status.conditions ~= nil then
  for _, condition in ipairs(obj.status.conditions) do
    conditions[condition.type] = condition
  end
end

local function health(status, condition)
  return {status = status, message = condition.reason .. ": " .. condition.message}
end

local ready = conditions.Ready
if ready == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "dispatch-manager has not looked at this generation yet"}
end
if ready.status == "Unknown" then
  return health("Progressing", ready)
end
if ready.reason == "ObserveOnlyRequested" then
  return health("Suspended", ready)
end
-- The first that does not hold is why. QueueActive forbids only new jobs, but those wait, too.
for _, name in ipairs({"Reachable", "ReadmissionGate", "QueueActive"}) do
  local condition = conditions[name]
  if condition ~= nil and condition.status ~= "True" then
    return health("Degraded", condition)
  end
end
if ready.status ~= "True" then
  return health("Degraded", ready)
end
return health("Healthy", ready)
