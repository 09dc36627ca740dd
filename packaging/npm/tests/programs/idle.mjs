// A child that outlives its parent.
process.on("disconnect", () => {});
setInterval(() => {}, 1000);
process.send("runs");
