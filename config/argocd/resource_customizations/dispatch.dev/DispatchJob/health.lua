local conditions = {}
if obj.status ~= nil and obj.status.conditions ~= nil then
  for _, condition in ipairs(obj.status.conditions) do
    conditions[condition.type] = condition
  end
end

local function health(status, condition)
  return {status = status, message = condition.reason .. ": " .. condition.message}
end

-- The end is final, whatever is changed in the spec later.
local finished = conditions.Finished
if finished ~= nil and finished.status == "True" then
  if finished.reason == "Succeeded" then
    return health("Healthy", finished)
  end
  return health("Degraded", finished)
end
local ready = conditions.Ready
if ready == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "dispatch-manager has not looked at this generation yet"}
end
if ready.status == "True" then
  return health("Healthy", ready)
end
-- What goes on by itself. Everything else waits for somebody: a grant, a target, another spec.
local progressing = {
  Submitting = true, WaitingForQuota = true, WaitingForAdmission = true,
}
if progressing[ready.reason] then
  return health("Progressing", ready)
end
return health("Degraded", ready)
